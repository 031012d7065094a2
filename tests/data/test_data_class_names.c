/* Lists of classes' names, plain text, and CSV files with words as labels. */
#include "data/class_names.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static td_status parse(const char *text, bool by_hand, td_class_names *names)
{
    return td_class_names_parse("list", text, strlen(text), by_hand, names);
}

static void test_lists_by_hand(void **state)
{
    (void)state;
    static const char *const lists[] = {
        "ant\nbee x\ncow",
        "ant\nbee x\ncow\n",
        "ant\nbee x\ncow\n\n \n",
        "ant\r\nbee x\r\ncow\r\n",
        "ant\rbee x\rcow",
        "\xef\xbb\xbf"
        "ant\nbee x\ncow\n",
        "  ant\t\nbee x \n cow",
        "\xef\xbb\xbf"
        "ant\r\nbee x\r\n\tcow\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        td_class_names names;
        assert_int_equal(parse(lists[i], true, &names), TD_OK);
        assert_int_equal(names.count, 3);
        assert_string_equal(names.name[0], "ant");
        assert_string_equal(names.name[1], "bee x");
        assert_string_equal(names.name[2], "cow");
        td_class_names_free(&names);
    }
}

static void test_bad_lists(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        bool by_hand;
    } cases[] = {
        { "ant\n\ncow", "list:3: the line before is blank", true },
        { "ant\n\ncow", "list:3: the line before is blank", false },
        { "\nant", "list:2: the line before is blank", true },
        { "ant\nbee\nant", "'ant' is the name of two classes", true },
        { "ant\nbee\n ant", "'ant' is the name of two classes", true },
        { "caf\xe9\n", "list:1: 'caf?' cannot be a class's name", true },
        { "ant\nz\x1b[2J\n", "list:2: 'z?[2J' cannot be a class's name", false },
        { "ant\r\nbee\r\n", "list:1: 'ant?' cannot be a class's name", false },
        { "a\tb", "list:1: 'a\tb' cannot be a class's name", true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_class_names names;
        assert_int_equal(parse(cases[i].text, cases[i].by_hand, &names), TD_E_FORMAT);
        assert_error_says(cases[i].says, NULL);
        assert_int_equal(names.count, 0);
    }
    td_class_names names;
    static const char wide[] = "\xff\xfe"
                               "a\0n\0t\0\n\0"; /* UTF-16 */
    assert_int_equal(td_class_names_parse("list", wide, sizeof wide - 1, true, &names),
                     TD_E_FORMAT);
    assert_error_says("list: a byte 0", "UTF-8", NULL);
    char *longest = calloc(1, TD_CLASS_NAME + 2);
    assert_non_null(longest);
    memset(longest, 'x', TD_CLASS_NAME);
    assert_int_equal(parse(longest, true, &names), TD_OK);
    td_class_names_free(&names);
    longest[TD_CLASS_NAME] = 'x';
    assert_int_equal(parse(longest, true, &names), TD_E_FORMAT);
    assert_error_says("1001 bytes; at most 1000", NULL);
    free(longest);
}

static void test_plain_text(void **state)
{
    (void)state;
    static const struct {
        const char *text, *clean;
    } cases[] = {
        { "", "" },
        { "caf\xc3\xa9 \xe7\x8c\xab \xf0\x9f\x90\x88", NULL },
        { "\x1b]0;title\x07", "?]0;title?" },
        { "a\nb\rc\x7f", "a?b?c?" },
        { "\xc2\x9b"
          "31m",
          "??31m" }, /* a terminal's escape in one character */
        { "\x9b"
          "31m\xe9",
          "?31m?" }, /* Latin-1 */
        { "\xe2\x80\xae"
          "x\xe2\x81\xa6",
          "???x???" },              /* turns the direction */
        { "\xc3\x1b[2J", "??[2J" }, /* cut characters */
        { "\xe7\x8c", "??" },
        { "\xc0\xaf\xed\xa0\x80", "?????" }, /* none, in longer forms */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i].text);
        bool plain = cases[i].clean == NULL || cases[i].text[0] == '\0';
        assert_int_equal(td_is_plain_text(text), plain);
        td_clean_text(text);
        assert_string_equal(text, plain ? cases[i].text : cases[i].clean);
        assert_true(td_is_plain_text(text));
    }
    char tab[] = "a\tb";
    assert_false(td_is_plain_text(tab));
    td_clean_text(tab);
    assert_string_equal(tab, "a\tb");
}

static void test_messages_are_plain(void **state)
{
    (void)state;
    (void)td_fail(TD_E_IO, "%s: no", "z\x1b[2J");
    assert_string_equal(td_last_error(), "z?[2J: no");
    (void)td_fail_context(TD_E_IO, "%s", "\x1b");
    assert_string_equal(td_last_error(), "?: z?[2J: no");
}

/* Words of a CSV file's label column are classes' names, too. */
static void test_words(void **state)
{
    (void)state;
    static const char train[] = "1,cow\n2,ant\n3,bee\n", fewer[] = "1,cow\n2,ant\n";
    static const char other[] = "1,cow\n2,Ant\n", latin[] = "1,caf\xe9\n",
                      escape[] = "1,z\x1b[2J\n";
    temp_write("train", train, sizeof train - 1);
    temp_write("fewer", fewer, sizeof fewer - 1);
    temp_write("other", other, sizeof other - 1);
    temp_write("latin", latin, sizeof latin - 1);
    temp_write("escape", escape, sizeof escape - 1);
    td_dataset *of = td_csv_dataset(temp_path("train"), .header = TD_CSV_NO_HEADER);
    assert_non_null(of);
    td_dataset *d =
        td_csv_dataset(temp_path("fewer"), .header = TD_CSV_NO_HEADER, .classes_of = of);
    assert_non_null(d);
    assert_int_equal(d->classes, 3);
    td_tensor *x = td_new(TD_SHAPE(2, 1), TD_F32, TD_CPU), *y = td_new(TD_SHAPE(2), TD_I64, TD_CPU);
    int64_t index[] = { 0, 1 };
    assert_int_equal(d->vtable->fetch(d, index, 2, 0, x, y), TD_OK);
    assert_int_equal(((const int64_t *)td_data(y))[0], 2);
    assert_int_equal(((const int64_t *)td_data(y))[1], 0);
    td_free(x);
    td_free(y);
    td_dataset_free(d);
    assert_null(td_csv_dataset(temp_path("other"), .header = TD_CSV_NO_HEADER, .classes_of = of));
    assert_error_says("other:2: column 2: 'Ant' is none of the", "3 classes: 'ant', 'bee', 'cow'",
                      NULL);
    td_dataset_free(of);
    assert_null(td_csv_dataset(temp_path("latin"), .header = TD_CSV_NO_HEADER));
    assert_error_says("latin:1: column 2: 'caf?' cannot be a class's name", NULL);
    assert_null(td_csv_dataset(temp_path("escape"), .header = TD_CSV_NO_HEADER));
    assert_error_says("escape:1: column 2: 'z?[2J' cannot be a class's name", NULL);
}

/* What could not be read by others is not written. */
static void test_metadata(void **state)
{
    (void)state;
    td_manual_seed(1);
    td_module *net = td_nn_linear(2, 2);
    td_metadata latin[] = { { "classes", "caf\xe9\nant" } };
    const char *path = temp_path("net");
    assert_int_equal(td_checkpoint_save(path, net, .metadata = latin, .metadata_count = 1),
                     TD_E_ARG);
    assert_error_says("'classes' is not text in UTF-8: 'caf??ant'", NULL);
    td_metadata good[] = { { "classes", "caf\xc3\xa9\n\"\\\x1b\x7f" } };
    assert_int_equal(td_checkpoint_save(path, net, .metadata = good, .metadata_count = 1), TD_OK);
    char text[64];
    assert_int_equal(td_checkpoint_metadata(path, "classes", text, sizeof text), TD_OK);
    assert_string_equal(text, good[0].value);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_by_hand),
        cmocka_unit_test(test_bad_lists),
        cmocka_unit_test(test_plain_text),
        cmocka_unit_test(test_messages_are_plain),
        cmocka_unit_test_setup_teardown(test_words, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_metadata, temp_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: lists of classes' names", tests, NULL, NULL);
}
