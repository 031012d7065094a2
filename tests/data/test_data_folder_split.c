/* A folder of pictures that is split into training and validation. */
#include "data/data.h"
#include "data/images/images.h"
#include "data/inspect.h"
#include "tests/help/temp_folder.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

enum { CLASSES = 3, MOST = 64 };
static const int sizes[CLASSES] = { 40, 5, 2 };

/* Opening a folder reads no picture. */
static void make_folder(void)
{
    temp_make_folder("set");
    for (int k = 0; k < CLASSES; k++) {
        char name[64];
        snprintf(name, sizeof name, "set/c%d", k);
        temp_make_folder(name);
        for (int i = 0; i < sizes[k]; i++) {
            snprintf(name, sizeof name, "set/c%d/%02d.png", k, i);
            temp_write(name, "", 0);
        }
    }
}

typedef struct names {
    char name[MOST][32];
    int count, of_class[CLASSES];
} names;

static names open_part(td_image_folder_options options)
{
    options.folder = temp_path("set");
    td_dataset *dataset = td_image_folder_open_at(options, TD_HERE);
    names n = { .count = 0 };
    if (dataset == NULL) {
        fail_msg("%s", td_last_error());
    }
    assert_int_equal(dataset->classes, CLASSES);
    for (; n.count < dataset->length; n.count++) {
        const char *path = td_image_folder_path(dataset, n.count);
        snprintf(n.name[n.count], sizeof *n.name, "%s", path);
        n.of_class[path[1] - '0']++;
    }
    td_dataset_free(dataset);
    return n;
}

static bool holds(const names *n, const char *name)
{
    for (int i = 0; i < n->count; i++) {
        if (strcmp(n->name[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void test_parts_cover_the_folder(void **state)
{
    (void)state;
    static const struct {
        double fraction;
        int val[CLASSES];
    } cases[] = { { 0.2, { 8, 1, 1 } }, { 0.5, { 20, 3, 1 } }, { 0.99, { 39, 4, 1 } } };
    make_folder();
    names all = open_part((td_image_folder_options){ .val_fraction = 0 });
    for (int i = 0; i < 3; i++) {
        td_image_folder_options o = { .val_fraction = cases[i].fraction };
        names train = open_part(o);
        o.val = true;
        names val = open_part(o);
        assert_int_equal(train.count + val.count, all.count);
        for (int k = 0; k < CLASSES; k++) {
            assert_int_equal(val.of_class[k], cases[i].val[k]);
        }
        for (int j = 0; j < all.count; j++) {
            assert_true(holds(&train, all.name[j]) != holds(&val, all.name[j]));
        }
        for (int j = 1; j < val.count; j++) {
            assert_true(strcmp(val.name[j - 1], val.name[j]) < 0); /* in the folder's order */
        }
    }
}

/* Another seed splits in another way; the same seed does not, and a picture that is added
 * moves at most one other. */
static void test_a_split_is_stable(void **state)
{
    (void)state;
    make_folder();
    td_image_folder_options o = { .val_fraction = 0.25, .val = true };
    names first = open_part(o), again = open_part(o);
    assert_memory_equal(&first, &again, sizeof first);
    o.split_seed = 1;
    again = open_part(o);
    assert_int_equal(again.count, first.count);
    assert_memory_not_equal(&first, &again, sizeof first);
    o.split_seed = 0;
    temp_write("set/c0/new.png", "", 0);
    again = open_part(o);
    int moved = 0;
    for (int i = 0; i < first.count; i++) {
        moved += !holds(&again, first.name[i]);
    }
    assert_true(moved <= 1);
}

static void test_splits_that_cannot_be(void **state)
{
    (void)state;
    make_folder();
    td_image_folder_options bad[] = { { .val_fraction = 1 },
                                      { .val_fraction = -0.1 },
                                      { .val_fraction = 0.0 / 0.0 },
                                      { .val = true } };
    for (int i = 0; i < 4; i++) {
        bad[i].folder = temp_path("set");
        assert_null(td_image_folder_open_at(bad[i], TD_HERE));
        assert_error_says("less than 1", NULL);
    }
    temp_make_folder("set/lonely");
    temp_write("set/lonely/1.png", "", 0);
    assert_null(td_image_folder_open(temp_path("set"), .val_fraction = 0.2));
    assert_error_says("set/lonely", "one image", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts_cover_the_folder, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_a_split_is_stable, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_splits_that_cannot_be, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: the split of a folder", tests, NULL, NULL);
}
