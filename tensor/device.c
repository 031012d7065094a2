/* Names, checks and configures devices. */
#include "tensor/device.h"

#include "tensor/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int local_rank;

/* A device number after the colon: all of text, digits only. -1: it is none, or too large. */
static int parse_index(const char *text)
{
    int index = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 3 || text[digits] != '\0') {
        return -1;
    }
    for (; *text != '\0'; text++) {
        index = 10 * index + (*text - '0');
    }
    return index < TD_MAX_DEVICES ? index : -1;
}

td_status td_device_parse(const char *text, td_device *device)
{
    size_t type = strcspn(text, ":");
    bool is_cpu = type == 3 && strncmp(text, "cpu", 3) == 0;
    bool is_cuda = type == 4 && strncmp(text, "cuda", 4) == 0;
    int index = text[type] == '\0' ? 0 : parse_index(text + type + 1);
    TD_CHECK((is_cpu || is_cuda) && index >= 0, TD_E_ARG,
             "'%.60s' is no device: it is %s, N from 0 to %d", text,
             td_backend_of(TD_CUDA_N(0)) != NULL ? "cpu, cpu:N, cuda or cuda:N" : "cpu or cpu:N",
             TD_MAX_DEVICES - 1);
    td_device found = is_cuda ? TD_CUDA_N(index) : TD_CPU_N(index);
    const td_backend *backend = td_backend_of(found);
    TD_CHECK(!is_cuda || backend != NULL, TD_E_UNSUPPORTED,
             "cuda:%d cannot be used: this build has no CUDA kernels (make says what it "
             "needs for them); use cpu, or cpu:N for several devices on one machine",
             index);
    td_status status = backend != NULL ? backend->open(found) : TD_OK;
    if (status == TD_OK) {
        *device = found;
    }
    return status;
}

void td_set_local_rank(int rank)
{
    local_rank = rank;
}

td_device td_default_device(void)
{
    char own_gpu[16];
    const char *name = getenv("TANDEM_DEVICE");
    td_device device = TD_CPU;
    if (name != NULL && strcmp(name, "cuda") == 0) {
        snprintf(own_gpu, sizeof own_gpu, "cuda:%d", local_rank);
        name = own_gpu;
    }
    if (name != NULL && td_device_parse(name, &device) != TD_OK) {
        td_fail_context(TD_E_ARG, "TANDEM_DEVICE");
        td_die();
    }
    return device;
}

#define NAMES_OF(type)                                                                             \
    {                                                                                              \
        type ":0", type ":1", type ":2", type ":3", type ":4", type ":5", type ":6", type ":7",    \
            type ":8", type ":9", type ":10", type ":11", type ":12", type ":13", type ":14",      \
            type ":15"                                                                             \
    }

const char *td_device_name(td_device device)
{
    static const char *const names[][TD_MAX_DEVICES] = { NAMES_OF("cpu"), NAMES_OF("cuda") };
    bool known = device.type <= TD_DEVICE_CUDA && device.index < TD_MAX_DEVICES;
    return known ? names[device.type][device.index] : "unknown device";
}

void td_require_device(td_device device, td_site at)
{
    TD_REQUIRE(device.type == TD_DEVICE_CPU || td_backend_of(device) != NULL, at,
               "%s cannot be used: this build has no CUDA kernels; use TD_CPU",
               td_device_name(device));
    const char *type = device.type == TD_DEVICE_CPU ? "cpu" : "cuda";
    TD_REQUIRE(device.index < TD_MAX_DEVICES, at, "%s:%d does not exist: the last one is %s:%d",
               type, device.index, type, TD_MAX_DEVICES - 1);
}

const char *td_device_describe(td_device device)
{
    static _Thread_local char text[320];
    td_require_device(device, TD_NOWHERE);
    const td_backend *backend = td_backend_of(device);
    if (backend != NULL) {
        snprintf(text, sizeof text, "%s, %s", td_device_name(device), backend->title(device));
    } else {
        snprintf(text, sizeof text, "%s, %d threads", td_device_name(device), td_threads(device));
    }
    return text;
}

td_status td_set_threads(td_device device, int threads)
{
    TD_CHECK(device.type == TD_DEVICE_CPU, TD_E_ARG, "%s has no threads to choose: only CPUs do",
             td_device_name(device));
    td_require_device(device, TD_NOWHERE);
    TD_CHECK(threads >= 0 && threads <= TD_MAX_CPU_THREADS, TD_E_ARG,
             "%s cannot have %d threads: 1 to %d, or 0 for the default", td_device_name(device),
             threads, TD_MAX_CPU_THREADS);
    return td_cpu_set_threads(device, threads);
}

void td_share_cpus(int processes)
{
    td_cpu_share(processes);
}

int td_count_cpus(void)
{
    return td_cpu_count();
}

td_status td_pin_threads(td_device device, int rank, int ranks)
{
    TD_CHECK(device.type == TD_DEVICE_CPU, TD_E_ARG, "%s has no threads to bind: only CPUs do",
             td_device_name(device));
    td_require_device(device, TD_NOWHERE);
    TD_CHECK(ranks >= 1 && rank >= 0 && rank < ranks, TD_E_ARG, "rank %d of %d does not exist",
             rank, ranks);
    return td_cpu_pin(device, rank, ranks);
}

int td_threads(td_device device)
{
    td_require_device(device, TD_NOWHERE);
    return device.type == TD_DEVICE_CPU ? td_cpu_threads(device) : 1;
}
