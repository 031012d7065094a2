/* The distributed sampler against the orders that PyTorch's gives, and what must hold for any. */
#include "dist/dist.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 300 };

typedef struct drawn {
    int64_t index[MOST];
    int64_t count;
} drawn;

static drawn draw(const td_distributed_options *options, uint64_t epoch, int64_t length)
{
    td_sampler *s = td_distributed_sampler_at(*options, TD_HERE);
    assert_non_null(s);
    drawn d;
    assert_true(s->count(s, length) <= MOST);
    d.count = s->order(s, epoch, length, d.index);
    assert_int_equal(d.count, s->count(s, length));
    td_sampler_free(s);
    return d;
}

/* What torch.utils.data.DistributedSampler of PyTorch 1.13 gave. */
typedef struct example {
    int64_t length;
    td_distributed_options options;
    uint64_t epoch;
    int64_t count, index[5][4];
} example;

static const example examples[] = {
    { 10,
      { .world_size = 3, .shuffle = true },
      0,
      4,
      { { 4, 5, 0, 2 }, { 1, 3, 8, 4 }, { 7, 9, 6, 1 } } },
    { 10,
      { .world_size = 3, .shuffle = true, .drop_last = true },
      5,
      3,
      { { 1, 6, 0 }, { 4, 3, 2 }, { 9, 5, 8 } } },
    { 2,
      { .world_size = 5, .shuffle = true, .seed = 7 },
      1,
      1,
      { { 1 }, { 0 }, { 1 }, { 0 }, { 1 } } },
    { 10, { .world_size = 4 }, 0, 3, { { 0, 4, 8 }, { 1, 5, 9 }, { 2, 6, 0 }, { 3, 7, 1 } } },
    { 9, { .world_size = 4, .drop_last = true }, 0, 2, { { 0, 4 }, { 1, 5 }, { 2, 6 }, { 3, 7 } } },
};

static void test_known_orders(void **state)
{
    (void)state;
    for (size_t e = 0; e < sizeof examples / sizeof *examples; e++) {
        td_distributed_options options = examples[e].options;
        for (options.rank = 0; options.rank < options.world_size; options.rank++) {
            drawn d = draw(&options, examples[e].epoch, examples[e].length);
            assert_int_equal(d.count, examples[e].count);
            assert_memory_equal(d.index, examples[e].index[options.rank],
                                (size_t)d.count * sizeof *d.index);
        }
    }
}

static void compare_with_golden(const cJSON *run, bool set_epoch)
{
    const cJSON *rank = NULL;
    cJSON_ArrayForEach(rank, golden_get(run, "ranks"))
    {
        td_distributed_options options = { .rank = (int)golden_number(rank, "rank"),
                                           .world_size = 2,
                                           .shuffle = true };
        const cJSON *order = NULL;
        uint64_t epoch = 0;
        cJSON_ArrayForEach(order, golden_get(rank, "order_first3epochs"))
        {
            drawn d = draw(&options, set_epoch ? epoch : 0, 142);
            assert_int_equal(d.count, cJSON_GetArraySize(order));
            const cJSON *sample = NULL;
            int64_t i = 0;
            cJSON_ArrayForEach(sample, order)
            {
                assert_int_equal(d.index[i++], sample->valuedouble);
            }
            epoch++;
        }
        assert_int_equal(epoch, 3);
    }
}

static void test_wine_of_two_ranks(void **state)
{
    (void)state;
    cJSON *golden = golden_open("golden_wine_ddp2.json");
    if (golden == NULL) {
        skip();
    }
    compare_with_golden(golden_get(golden, "no_set_epoch"), false);
    compare_with_golden(golden_get(golden, "set_epoch"), true);
    cJSON_Delete(golden);
}

/* All ranks together see every sample, and each sees equally many. */
static void check_cover(int64_t length, td_distributed_options options)
{
    int seen[MOST] = { 0 };
    int64_t sum = 0, least = MOST, most = 0;
    for (options.rank = 0; options.rank < options.world_size; options.rank++) {
        drawn d = draw(&options, 3, length);
        for (int64_t i = 0; i < d.count; i++) {
            assert_in_range(d.index[i], 0, length - 1);
            seen[d.index[i]]++;
        }
        sum += d.count;
        least = d.count < least ? d.count : least;
        most = d.count > most ? d.count : most;
    }
    int64_t missing = 0;
    for (int64_t i = 0; i < length; i++) {
        missing += seen[i] == 0;
        assert_true(seen[i] <= 1 + (int)((options.world_size + length - 1) / length) ||
                    !options.drop_last);
    }
    int64_t left = length % options.world_size;
    if (options.no_padding) {
        assert_int_equal(sum, length);
        assert_int_equal(missing, 0);
        assert_true(most - least <= 1);
        return;
    }
    assert_int_equal(least, most);
    assert_int_equal(missing, options.drop_last ? left : 0);
    assert_int_equal(sum,
                     length - left + (left > 0 && !options.drop_last ? options.world_size : 0));
}

static void test_union_is_the_set(void **state)
{
    (void)state;
    const int64_t lengths[] = { 1, 2, 7, 12, 142, 251 };
    for (int world = 1; world <= 8; world++) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            for (int kind = 0; kind < 6; kind++) {
                bool drops = kind / 2 == 1;
                if (drops && lengths[i] < world) {
                    continue; /* refused */
                }
                check_cover(lengths[i], (td_distributed_options){ .world_size = world,
                                                                  .shuffle = kind % 2 == 1,
                                                                  .drop_last = drops,
                                                                  .no_padding = kind / 2 == 2 });
            }
        }
    }
}

static void test_epochs_differ(void **state)
{
    (void)state;
    td_distributed_options options = { .world_size = 2, .shuffle = true };
    drawn zero = draw(&options, 0, 142), one = draw(&options, 1, 142);
    assert_memory_not_equal(zero.index, one.index, sizeof *zero.index * 71);
    options.seed = 1; /* the two are added */
    drawn other = draw(&options, 0, 142);
    assert_memory_equal(other.index, one.index, sizeof *one.index * 71);
}

/* ---- in a loader ---- */

static td_status fetch_number(const td_dataset *dataset, const int64_t *index, int64_t n,
                              uint64_t epoch, td_tensor *x, td_tensor *y)
{
    (void)dataset, (void)epoch;
    for (int64_t i = 0; i < n; i++) {
        td_set(x, (int64_t[]){ i, 0 }, (double)index[i]);
        td_set(y, &i, 0.0);
    }
    return TD_OK;
}

static const td_dataset_vtable number_vtable = { .kind = "numbers", .fetch = fetch_number };
static td_dataset numbers = { .vtable = &number_vtable,
                              .length = 20,
                              .sample_shape = { .ndim = 1, .dim = { 1 } },
                              .dtype = TD_F32,
                              .classes = 1 };

static void run_epoch(td_loader *loader, int64_t *order)
{
    int64_t count = 0;
    for (td_batch batch; td_loader_next(loader, &batch);) {
        for (int64_t i = 0; i < batch.size; i++) {
            order[count++] = batch.samples[i];
        }
    }
    assert_int_equal(td_loader_status(loader), TD_OK);
    assert_int_equal(count, 10);
}

/* Three epochs of a loader that is never told the epoch, and one that goes back to the first. */
static void test_a_loader_counts_the_epochs(void **state)
{
    (void)state;
    const td_distributed_options options = { .rank = 1, .world_size = 2, .shuffle = true };
    td_loader *loader = td_loader_open(&numbers, .batch_size = 4,
                                       .sampler = td_distributed_sampler_at(options, TD_HERE));
    assert_non_null(loader);
    for (uint64_t run = 0; run < 4; run++) {
        uint64_t epoch = run % 3;
        int64_t order[10];
        if (run == 3) {
            td_loader_seek(loader, epoch, 0);
        }
        run_epoch(loader, order);
        drawn d = draw(&options, epoch, numbers.length);
        assert_int_equal(d.count, 10);
        assert_memory_equal(order, d.index, sizeof order);
    }
    td_loader_close(loader);
}

static void test_bad_ranks(void **state)
{
    (void)state;
    expect_fatal("no rank 2 in", td_distributed_sampler(.rank = 2, .world_size = 2));
    assert_non_null(strstr(fatal_message(), "test_dist_sampler.c:"));
    expect_fatal("no rank -1 in", td_distributed_sampler(.rank = -1, .world_size = 2));
    expect_fatal("a world of -1", td_distributed_sampler(.world_size = -1));
}

static void test_without_a_group_it_is_a_world_of_one(void **state)
{
    (void)state;
    drawn d = draw(&(td_distributed_options){ .shuffle = false }, 0, 5);
    assert_int_equal(d.count, 5);
    for (int64_t i = 0; i < 5; i++) {
        assert_int_equal(d.index[i], i);
    }
}

/* A rank with the shares of several ranks gets them batch by batch, whichever ranks these are. */
static void test_several_shares(void **state)
{
    (void)state;
    enum { WORLD = 8, EACH = 3 };
    for (int64_t length = 1; length <= 60; length += 7) {
        for (int ranks = 1; ranks <= WORLD; ranks++) {
            int first = (WORLD - 1) * (ranks - 1) / ranks;
            td_deal deal = { .rank = first,
                             .world_size = WORLD,
                             .parts = ranks,
                             .stride = 2,
                             .each = EACH,
                             .drop_last = length % 2 == 1 && length > WORLD };
            drawn all = draw(&(td_distributed_options){ .deal = deal, .shuffle = true }, 3, length);
            int64_t share = all.count / ranks, *index = all.index;
            for (int64_t from = 0; from < share; from += EACH) {
                int64_t here = share - from < EACH ? share - from : EACH;
                for (int part = 0; part < ranks; part++, index += here) {
                    int rank = first + 2 * part < WORLD ? first + 2 * part : WORLD - 1;
                    drawn one = draw(&(td_distributed_options){ .rank = rank,
                                                                .world_size = WORLD,
                                                                .shuffle = true,
                                                                .drop_last = deal.drop_last },
                                     3, length);
                    assert_int_equal(one.count, share);
                    assert_memory_equal(index, one.index + from, (size_t)here * sizeof *index);
                }
            }
        }
    }
}

/* Whole batches: all but the last of an epoch have the same samples on any number of ranks. */
static void test_whole_batches(void **state)
{
    (void)state;
    enum { EACH = 4 };
    for (int64_t length = 1; length <= 40; length++) {
        for (int world = 1; world <= 5; world++) {
            int64_t seen = 0;
            for (int rank = 0; rank < world; rank++) {
                td_deal deal = { rank, world, .no_padding = true, .each = EACH };
                drawn d = draw(&(td_distributed_options){ .deal = deal }, 0, length);
                for (int64_t i = 0; i < d.count; i++) {
                    assert_int_equal(d.index[i], (i / EACH * world + rank) * EACH + i % EACH);
                }
                seen += d.count;
            }
            assert_int_equal(seen, length);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_orders),
        cmocka_unit_test(test_wine_of_two_ranks),
        cmocka_unit_test(test_union_is_the_set),
        cmocka_unit_test(test_epochs_differ),
        cmocka_unit_test(test_a_loader_counts_the_epochs),
        cmocka_unit_test(test_several_shares),
        cmocka_unit_test(test_whole_batches),
        cmocka_unit_test(test_bad_ranks),
        cmocka_unit_test(test_without_a_group_it_is_a_world_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
