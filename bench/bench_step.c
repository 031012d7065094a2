/* One training step of a model on a fixed batch: forward, loss, backward, SGD with Nesterov
 * momentum.
 *
 *     bench_step [NAME=VALUE...]
 *
 * model=NAME (td_model's)  stem=imagenet|cifar  classes=10  size=32  batch=256  threads=2
 * precision=fp32|bf16|bf16x3  winograd=0|1  dtype=f32|f64  ranks=1 (processes, each with
 * its share of the batch, averaging gradients)  trace=FILE (a timeline is written, as by --trace)
 */
#include "bench/job.h"
#include "bench/ranks.h"
#include "dist/trace.h"
#include "tensor/kernels/kernels.h"

#include <string.h>

typedef struct settings {
    const char *model, *stem, *precision, *dtype;
    const char *classes, *size, *batch, *threads, *winograd, *ranks, *trace;
    int commands; /* the standard input, which spawned processes do not have */
} settings;

static int fail(const char *what)
{
    fprintf(stderr, "bench_step: %s\n", what);
    return 1;
}

/* Puts NAME=VALUE where it belongs; false if there is no such name. */
static bool set(settings *s, const char *argument)
{
    const struct {
        const char *name;
        const char **value;
    } known[] = {
        { "model", &s->model }, { "stem", &s->stem },       { "precision", &s->precision },
        { "dtype", &s->dtype }, { "classes", &s->classes }, { "size", &s->size },
        { "batch", &s->batch }, { "threads", &s->threads }, { "winograd", &s->winograd },
        { "ranks", &s->ranks }, { "trace", &s->trace },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].name);
        if (strncmp(argument, known[i].name, length) == 0 && argument[length] == '=') {
            *known[i].value = argument + length + 1;
            return true;
        }
    }
    return false;
}

static int64_t number(const char *text)
{
    return strtol(text, NULL, 10);
}

static bool open_settings(job *j, const settings *s, int64_t batch)
{
    td_dtype dtype = strcmp(s->dtype, "f64") == 0 ? TD_F64 : TD_F32;
    return open_job(j, s->model, strcmp(s->stem, "cifar") == 0 ? TD_STEM_CIFAR : TD_STEM_IMAGENET,
                    number(s->classes), number(s->size), batch, dtype);
}

static void describe(char *facts, size_t size, const settings *s)
{
    snprintf(facts, size, "tandem %s, %s, %s%s, %s x %d threads", TANDEM_VERSION,
             td_kernels_of(TD_CPU)->name, s->precision, number(s->winograd) ? " with Winograd" : "",
             s->ranks, td_threads(TD_CPU));
}

static int run_rank(int local_rank, void *arg)
{
    (void)local_rank;
    const settings *s = arg;
    int world = (int)number(s->ranks);
    job j = { .net = NULL };
    char facts[160];
    td_set_threads(TD_CPU, (int)number(s->threads));
    if (td_dist_init() != TD_OK || !open_settings(&j, s, number(s->batch) / world)) {
        return fail(td_last_error());
    }
    j.net = td_ddp(j.net);
    if (j.net == NULL) {
        return fail(td_last_error());
    }
    open_optim(&j);
    describe(facts, sizeof facts, s);
    if (td_trace_open(s->trace) != TD_OK) {
        return fail(td_last_error());
    }
    bench_serve_ranks(facts, s->commands, train_step, &j);
    close_job(&j);
    if (td_trace_close() != TD_OK) {
        return fail(td_last_error());
    }
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    settings s = { .model = "resnet18",
                   .stem = "imagenet",
                   .precision = "fp32",
                   .dtype = "f32",
                   .classes = "10",
                   .size = "32",
                   .batch = "256",
                   .threads = "2",
                   .winograd = "0",
                   .ranks = "1" };
    for (int i = 1; i < argc; i++) {
        if (!set(&s, argv[i])) {
            fprintf(stderr, "bench_step: '%s' is no NAME=VALUE of those at the top of %s\n",
                    argv[i], __FILE__);
            return 2;
        }
    }
    td_math math = { .winograd = number(s.winograd) != 0 };
    if (!td_precision_parse(s.precision, &math.precision)) {
        return fail("precision is fp32, bf16 or bf16x3");
    }
    td_set_math(math);
    if (number(s.ranks) > 1) {
        s.commands = dup(STDIN_FILENO);
        td_status status = td_spawn(run_rank, &s, (int)number(s.ranks));
        return status == TD_OK ? 0 : fail(td_last_error());
    }
    if (td_set_threads(TD_CPU, (int)number(s.threads)) != TD_OK) {
        return fail(td_last_error());
    }
    job j = { .net = NULL };
    if (!open_settings(&j, &s, number(s.batch)) || td_trace_open(s.trace) != TD_OK) {
        return fail(td_last_error());
    }
    open_optim(&j);
    char facts[160];
    describe(facts, sizeof facts, &s);
    bench_serve(facts, train_step, &j);
    close_job(&j);
    return td_trace_close() == TD_OK ? 0 : fail(td_last_error());
}
