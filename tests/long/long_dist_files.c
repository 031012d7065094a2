/* Every layout loads what any other has saved, bitwise: {1, 2, 4} replicas x tp {1, 2} x pp {1, 2}
 * x what replicas divide. What a layout has loaded and saved has the fingerprint of the file. */
#include "nn/io/checkpoint.h"
#include "nn/io/fingerprint.h"
#include "tests/dist/grid_job.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LAYOUTS = 3 * 2 * 2 * 3 };

/* Layout i of all. */
static grid grid_of(int i, char *mesh, size_t size)
{
    static const int shards[] = { 0, 1, 3 };
    int dp = 1 << i % 3, tp = 1 + i / 3 % 2, pp = 1 + i / 6 % 2;
    snprintf(mesh, size, "pp=%d,dp=%d,tp=%d", pp, dp, tp);
    return (grid){
        .mesh = mesh, .dtype = TD_F32, .shard = shards[i / 12], .schedule = pp > 1 ? "1f1b" : NULL
    };
}

/* What a file says of its content; td_checkpoint_load has compared that with the content. */
static void fingerprint_of(const char *name, char *text, size_t size)
{
    assert_int_equal(td_checkpoint_metadata(temp_path(name), TD_KEY_FINGERPRINT, text, size),
                     TD_OK);
}

static void test_all_pairs(void **state)
{
    (void)state;
    char mesh[64], other[64], trained[32], loaded[32];
    for (int i = 0; i < LAYOUTS; i++) {
        grid_pass(grid_of(i, mesh, sizeof mesh), NULL, "trained");
        fingerprint_of("trained", trained, sizeof trained);
        for (int k = 0; k < LAYOUTS; k++) {
            grid g = grid_of(k, other, sizeof other);
            grid_pass(g, "trained", "loaded");
            fingerprint_of("loaded", loaded, sizeof loaded);
            if (strcmp(trained, loaded) != 0) {
                fail_msg("saved under %s, loaded under %s, td_zero(%d): %s, not %s", mesh, other,
                         g.shard, loaded, trained);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_pairs, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
