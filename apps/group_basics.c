/* What a process group can do, in five small cases. Every rank prints, one after the other.
 *
 *   group_basics                                  starts two processes itself
 *   tdrun --nproc-per-node 2 group_basics         is started by a launcher
 *   group_basics 0 2 tcp://127.0.0.1:23456        is started by hand, in two terminals: rank,
 *   group_basics 1 2 tcp://127.0.0.1:23456        number of ranks, meeting place
 *
 * docs/tutorial/2a-group.md explains the ideas. */
#include <tandem.h>

#include <inttypes.h>
#include <stdarg.h>
#include <unistd.h>

enum { SAMPLES = 9, MOST_RANKS = 64 };

/* The ranks print in turn: a barrier returns when all ranks have called it. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    for (int rank = 0; rank < td_dist_world_size(); rank++) {
        if (rank == td_dist_rank()) {
            va_list values;
            va_start(values, format);
            printf("  rank %d: ", rank);
            vprintf(format, values);
            printf("\n");
            va_end(values);
            fflush(stdout);
        }
        if (td_barrier(NULL) != TD_OK) {
            td_die();
        }
    }
}

static void say_values(const char *what, const td_tensor *t)
{
    double values[2 * MOST_RANKS] = { 0 }; /* at most two of each rank */
    char text[32 * MOST_RANKS] = "";
    size_t used = 0;
    td_read(t, values, TD_F64);
    for (int i = 0; i < td_numel(t); i++) {
        used +=
            (size_t)snprintf(text + used, sizeof text - used, i > 0 ? ", %.0f" : "%.0f", values[i]);
    }
    say("%s [%s]", what, text);
}

/* 2: each rank gets its part of the samples. The first samples come twice if that is needed to give
 * all ranks equally many. */
static void show_sampler(void)
{
    td_printf_rank0(
        "2. the distributed sampler: 9 samples, each rank its part, padded to equal counts\n");
    td_sampler *sampler = td_distributed_sampler(.shuffle = true);
    if (sampler == NULL) {
        td_die();
    }
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        char what[32];
        int64_t index[2 * SAMPLES];
        int64_t count = sampler->order(sampler, epoch, SAMPLES, index);
        td_tensor *part = count < 0 ? NULL : td_from(index, TD_SHAPE(count), TD_I64, TD_CPU);
        if (part == NULL) {
            td_die();
        }
        snprintf(what, sizeof what, "epoch %d", (int)epoch);
        say_values(what, part);
        td_free(part);
    }
    td_sampler_free(sampler);
}

/* The sum of all weights and biases: the sum of the layer's result for an input of ones. */
static double answer(td_module *layer)
{
    double sum = 0;
    td_tensor *ones = td_full(TD_SHAPE(1, 4), 1, TD_F32, TD_CPU);
    if (ones == NULL) {
        td_die();
    }
    TD_STEP {
        sum = td_item(td_sum(td_forward(layer, ones)));
    }
    td_free(ones);
    return sum;
}

/* 3: without the barrier a rank might read the file before it is written. */
static void show_checkpoint(void)
{
    const char *path = "group_basics.safetensors";
    td_printf_rank0("3. rank 0 saves, a barrier, all load, each to its own device\n");
    td_manual_seed((uint64_t)td_dist_rank()); /* so that the weights differ at first */
    td_module *layer = td_nn_linear(4, 2);
    if (layer == NULL) {
        td_die();
    }
    say("sum of its own weights: %.6f", answer(layer));
    if (td_dist_rank() == 0 && td_save(path, layer) != TD_OK) {
        td_die();
    }
    td_printf_rank0("(rank: 0)   == Saved: %s\n", path);
    if (td_barrier(NULL) != TD_OK || td_load(path, layer) != TD_OK) {
        td_die();
    }
    say("== Loaded; sum of the weights: %.6f", answer(layer)); /* has barriers: all have loaded */
    if (td_dist_rank() == 0) {
        unlink(path);
    }
    td_module_free(layer);
}

/* 4: all ranks call a collective; each gives a tensor, and each gets the result. */
static void show_collectives(void)
{
    td_printf_rank0("4. collectives: rank r has [2r+1, 2r+2]\n");
    float values[] = { 2.0f * (float)td_dist_rank() + 1, 2.0f * (float)td_dist_rank() + 2 };
    td_tensor *mine = td_from(values, TD_SHAPE(2), TD_F32, TD_CPU);
    td_tensor *all = td_new(TD_SHAPE(td_dist_world_size(), 2), TD_F32, TD_CPU);
    if (mine == NULL || all == NULL) {
        td_die();
    }
    say_values("has", mine);
    if (td_all_gather(NULL, all, mine, NULL) != TD_OK) {
        td_die();
    }
    say_values("all_gather    ", all);
    if (td_all_reduce(NULL, mine, TD_SUM, NULL) != TD_OK) {
        td_die();
    }
    say_values("all_reduce sum", mine);
    td_free(mine);
    td_free(all);
}

/* 5: the "model" of this case is right about the samples below 5. Padded parts count a sample
 * twice; without padding each sample counts once. (td_evaluate does this for a real model.) */
static double count_right(bool no_padding, double *seen)
{
    int64_t index[2 * SAMPLES];
    double counts[2] = { 0, 0 };
    td_sampler *sampler = td_distributed_sampler(.no_padding = no_padding);
    int64_t count = sampler != NULL ? sampler->order(sampler, 0, SAMPLES, index) : -1;
    for (int64_t i = 0; i < count; i++) {
        counts[0] += index[i] < 5;
        counts[1] += 1;
    }
    if (count < 0 || td_all_reduce_numbers(NULL, counts, 2) != TD_OK) {
        td_die();
    }
    td_sampler_free(sampler);
    *seen = counts[1];
    return counts[0];
}

static void show_evaluation(void)
{
    td_printf_rank0("5. evaluation: 9 samples on all ranks, scored once\n");
    double seen, right = count_right(false, &seen);
    say("with the padding %.0f/%.0f", right, seen);
    right = count_right(true, &seen);
    say("each sample once %.0f/%.0f", right, seen);
}

static void show_all(const char *how)
{
    td_printf_rank0("%s\n", how);
    say("of %d, local rank %d of %d, backend %s", td_dist_world_size(), td_dist_local_rank(),
        td_dist_local_world_size(), td_group_backend(NULL));
    show_sampler();
    show_checkpoint();
    show_collectives();
    show_evaluation();
    td_dist_destroy();
}

static int spawned(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    if (td_dist_init() != TD_OK) {
        td_die();
    }
    show_all("1. spawned: this process has started the ranks");
    return 0;
}

int main(int argc, char **argv)
{
    int rank = 0, world_size = 1;
    const char *url = NULL;
    static const char usage[] = "[RANK WORLD_SIZE URL]     (or by tdrun)";
    const td_option options[] = {
        { "RANK", .number = &rank },
        { "WORLD_SIZE", .number = &world_size, .least = 1, .most = MOST_RANKS },
        { "URL", .text = &url },
        { 0 },
    };
    td_read_options(argc, argv, usage, options);
    if (argc > 1 && url == NULL) {
        td_refuse_options(usage, "give a rank, the number of ranks, and where they meet");
    }
    if (url != NULL) {
        if (td_dist_init(.init_method = url, .rank = rank, .world_size = world_size) != TD_OK) {
            td_die();
        }
        show_all("1. started by hand: the ranks have met at the URL");
    } else if (td_dist_is_launched()) {
        if (td_dist_init() != TD_OK) {
            td_die();
        }
        if (td_dist_world_size() > MOST_RANKS) { /* their values would not fit in a line */
            td_refuse_options(usage, "start at most 64 ranks");
        }
        show_all("1. launched: the environment says who is who");
    } else if (td_spawn(spawned, NULL, 2) != TD_OK) {
        td_die();
    }
    return td_finish();
}
