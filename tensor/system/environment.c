/* Finds misspelt variables of the environment. */
#include "tensor/system/environment.h"

#include "tensor/system/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All that the library and its programs read; what a launcher sets for its workers; and what tests
 * and benchmarks read, whose names have beginnings of their own. */
static const char *const names[] = {
    "TANDEM_BACKEND",        "TANDEM_CACHE",         "TANDEM_CPU_ISA",
    "TANDEM_CUDA_LIBRARIES", "TANDEM_DATA",          "TANDEM_DEVICE",
    "TANDEM_DEVICE_BACKEND", "TANDEM_DIST_DEBUG",    "TANDEM_DIST_STALL",
    "TANDEM_LIB_PATH",       "TANDEM_MESH",          "TANDEM_MODELS",
    "TANDEM_NCCL",           "TANDEM_REQUIRE_TOKEN", "TANDEM_RUN_ID",
    "TANDEM_TEXT",           "TANDEM_TOKEN",         "TANDEM_TOKEN_FILE",
    "TANDEM_AGENT_STORE",    "TANDEM_ATTEMPT",       "TANDEM_ERROR_FILE",
    "TANDEM_MAX_RESTARTS",   "TANDEM_RESTART_COUNT", "TANDEM_SPAWN_ID",
    "TANDEM_SPAWN_SIZE",     "TANDEM_SPAWN_TOKEN",   "TANDEM_GOLDEN",
    "TANDEM_LLAMA2C",        "TANDEM_LLMC",          "TANDEM_LONG",
    "TANDEM_ONNX",           "TANDEM_PICTURES",      "TANDEM_PYTHON",
    "TANDEM_ELASTIC",        "TANDEM_SIM",           "TANDEM_SIM_LINK",
    "TANDEM_SIM_CORES",      "TANDEM_SIM_KERNELS",   "TANDEM_SIM_KILL",
};
static const char *const beginnings[] = { "TANDEM_BENCH_", "TANDEM_CONV_", "TANDEM_EMULATE",
                                          "TANDEM_GPT2_", "TANDEM_TEST_" };
enum { NAMES = sizeof names / sizeof *names, BEGINNINGS = sizeof beginnings / sizeof *beginnings };

static bool is_known(const char *name)
{
    bool known = false;
    for (int i = 0; i < NAMES; i++) {
        known = known || strcmp(names[i], name) == 0;
    }
    for (int i = 0; i < BEGINNINGS; i++) {
        known = known || strncmp(beginnings[i], name, strlen(beginnings[i])) == 0;
    }
    return known;
}

void td_check_environment(void)
{
    const char *local = getenv("LOCAL_RANK");
    if (local != NULL && strcmp(local, "0") != 0) {
        return;
    }
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char name[64];
        size_t length = strcspn(*at, "=");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : 0), *at);
        if (strncmp(name, "TANDEM_", strlen("TANDEM_")) == 0 && !is_known(name)) {
            td_notice("%s in the environment is unknown; the nearest name is %s", name,
                      td_nearest_name(name, names, NAMES));
        }
    }
}
