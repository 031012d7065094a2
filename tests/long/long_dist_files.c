/* Every layout loads what any other has saved, bitwise: what a layout has loaded and saved has the
 * fingerprint of the file.
 *
 * usage: long_dist_files [PATTERN]     saved under layouts whose texts fit: "pp=2,dp=4,*" */
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

/* What a file says of its content; td_checkpoint_load has compared that with the content. */
static void fingerprint_of(const char *name, char *text, size_t size)
{
    assert_int_equal(td_checkpoint_metadata(temp_path(name), TD_KEY_FINGERPRINT, text, size),
                     TD_OK);
}

static void test_saved(void **state)
{
    char mesh[64], other[64], trained[32], loaded[32];
    grid_pass(grid_layout(*(int *)*state, mesh), NULL, "trained");
    fingerprint_of("trained", trained, sizeof trained);
    for (int k = 0; k < LAYOUTS; k++) {
        grid g = grid_layout(k, other);
        grid_pass(g, "trained", "loaded");
        fingerprint_of("loaded", loaded, sizeof loaded);
        if (strcmp(trained, loaded) != 0) {
            fail_msg("saved under %s, loaded under %s, td_zero(%d): %s, not %s", mesh, other,
                     g.shard, loaded, trained);
        }
    }
}

int main(int argc, char **argv)
{
    static int numbers[LAYOUTS];
    static char names[LAYOUTS][96];
    struct CMUnitTest tests[LAYOUTS];
    for (int i = 0; i < LAYOUTS; i++) {
        char mesh[64];
        grid g = grid_layout(i, mesh);
        numbers[i] = i;
        snprintf(names[i], sizeof names[i], "%s,td_zero(%d)", mesh, g.shard);
        tests[i] = (struct CMUnitTest){ names[i], test_saved, NULL, NULL, &numbers[i] };
    }
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, temp_folder_setup, temp_folder_teardown);
}
