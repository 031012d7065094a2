/* Choices by timing: the first step goes by the rules, the second by the choices; they come from a
 * file, from text, or from the clock, and what is damaged is refused as a whole. Each test has a
 * number of threads of its own, and with it a file of its own. */
#include "tensor/tune/store.h"
#include "tests/tensor/choices.h"
#include "tests/help/temp_folder.h"
#include "tensor/tune/tune.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void use_threads(int threads)
{
    assert_int_equal(td_set_threads(TD_CPU, threads), TD_OK);
}

static td_autotune_stats choose(void)
{
    td_autotune_stats figures;
    assert_int_equal(td_autotune_choose(&figures), TD_OK);
    return figures;
}

/* The bits of a step that goes by a choice for all passes. */
static uint64_t bits_of(const char *way)
{
    choices_force(temp_folder(), way);
    td_set_autotune(true);
    (void)choices_step();
    td_autotune_stats figures = choose();
    assert_int_equal(figures.chosen, 3);
    assert_int_equal(figures.timed, 0);
    uint64_t bits = choices_step();
    td_set_autotune(false);
    return bits;
}

static void test_a_file_decides_from_the_second_step_on(void **state)
{
    (void)state;
    use_threads(1);
    td_set_autotune(false);
    uint64_t rules = choices_step();
    uint64_t first = bits_of("first");
    use_threads(2);
    uint64_t second = bits_of("second (first 2.000 ms, second 1.000 ms)");
    assert_true(first == rules && second != rules);
    use_threads(3);
    choices_force(temp_folder(), "second");
    td_set_autotune(true);
    assert_true(choices_step() == rules); /* the first */
    choose();
    assert_true(choices_step() != rules);
    td_set_autotune(false);
    assert_true(choices_step() == rules);
}

/* Text takes them to another run, where nothing is chosen any more. */
static void test_text_carries_choices(void **state)
{
    (void)state;
    size_t bytes;
    use_threads(4);
    td_set_autotune(true);
    assert_null(td_autotune_text(&bytes)); /* not made yet */
    td_set_autotune(false);
    uint64_t first = bits_of("first");
    td_set_autotune(true);
    (void)choices_step();
    choose();
    char *text = td_autotune_text(&bytes);
    assert_non_null(text);
    td_set_autotune(true); /* another run, on another machine */
    use_threads(5);
    choices_force(temp_folder(), "second");
    assert_int_equal(td_autotune_take(text, bytes), TD_OK);
    assert_int_equal(choose().chosen, 0); /* they are made */
    assert_true(choices_step() == first);
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(td_autotune_take(text, cut), TD_E_FORMAT);
    }
    assert_error_says("damaged", NULL);
    assert_int_equal(td_autotune_take("{}", 2), TD_E_FORMAT);
    assert_true(choices_step() == first);
    td_set_autotune(false);
    free(text);
}

/* A checkpoint whose choices are all for something else: none stays. One that fits is kept. */
static void test_choices_for_other_shapes(void **state)
{
    (void)state;
    use_threads(2);
    choices_force(temp_folder(), "first");
    for (int fits = 0; fits < 2; fits++) {
        size_t bytes;
        td_set_autotune(true);
        if (fits) {
            (void)choices_step();
            choose();
        }
        char *text = fits ? td_autotune_text(&bytes)
                          : strdup("tandem-choices 1\nchoice 5 a larger batch\nfirst\nend\n");
        bytes = strlen(text);
        td_set_autotune(true); /* forgets */
        assert_int_equal(td_autotune_take(text, bytes), TD_OK);
        free(text);
        (void)choices_step();
        assert_int_equal(choose().chosen, fits ? 0 : 3);
        assert_int_equal(choose().chosen, 0); /* once */
    }
    td_set_autotune(false);
}

/* What the first step has not met goes by the rules. */
static void test_later_shapes_go_by_the_rules(void **state)
{
    (void)state;
    td_set_autotune(false);
    uint64_t rules = choices_step();
    use_threads(6);
    choices_force(temp_folder(), "second");
    td_set_autotune(true);
    assert_int_equal(choose().chosen, 0);
    assert_true(choices_step() == rules);
    assert_int_equal(choose().chosen, 0);
    assert_true(choices_step() == rules);
    td_set_autotune(false);
}

/* A CPU has one way for each convolution. */
static void test_nothing_to_choose(void **state)
{
    (void)state;
    td_set_autotune(true);
    td_tensor *x = td_zeros(TD_SHAPE(2, 16, 8, 8), TD_F32, TD_CPU);
    td_tensor *w = td_zeros(TD_SHAPE(16, 16, 3, 3), TD_F32, TD_CPU);
    td_step_begin();
    (void)td_conv2d(x, w, NULL, .padding = 1);
    td_step_end();
    assert_int_equal(choose().chosen, 0);
    td_set_autotune(false);
    td_free(w);
    td_free(x);
}

/* What the file of the present number of threads holds. */
static const char *read_file(void)
{
    static char contents[2048];
    FILE *file = fopen(choices_path(temp_folder()), "r");
    assert_non_null(file);
    size_t bytes = fread(contents, 1, sizeof contents - 1, file);
    fclose(file);
    contents[bytes] = '\0';
    return contents;
}

/* By the clock; the file of it is what the next run reads. */
static void test_timed_and_kept(void **state)
{
    (void)state;
    use_threads(7);
    setenv("TANDEM_CACHE", temp_folder(), 1);
    for (int run = 0; run < 2; run++) {
        td_set_autotune(true);
        (void)choices_step();
        td_autotune_stats figures = choose();
        assert_int_equal(figures.chosen, 3);
        assert_int_equal(figures.timed, run == 0 ? 3 : 0);
    }
    td_set_autotune(false);
    const char *contents = read_file();
    assert_non_null(strstr(contents, "\ntest quotient\n"));
    assert_non_null(strstr(contents, "second (first "));
}

/* What is written to stderr between the two calls. */
static int usual_stderr;

static void hear_stderr(void)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/stderr", temp_folder());
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(file >= 0);
    fflush(stderr);
    usual_stderr = dup(STDERR_FILENO);
    assert_int_equal(dup2(file, STDERR_FILENO), STDERR_FILENO);
    close(file);
}

static const char *heard_stderr(void)
{
    static char text[1024];
    char path[1024];
    fflush(stderr);
    assert_int_equal(dup2(usual_stderr, STDERR_FILENO), STDERR_FILENO);
    close(usual_stderr);
    snprintf(path, sizeof path, "%s/stderr", temp_folder());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Files that are damaged, another owner's, or hold a choice that is none of ours: the choice is
 * made again, and replaces the file. */
static void expect_replaced(const char *what, int timed)
{
    td_set_autotune(true);
    (void)choices_step();
    td_autotune_stats figures = choose();
    assert_int_equal(figures.chosen, 3);
    assert_int_equal(figures.timed, timed);
    td_set_autotune(false);
    const char *contents = read_file();
    assert_null(strstr(contents, what));
    assert_non_null(strstr(contents, "second (first "));
}

static void replace_file(const char *text)
{
    FILE *file = fopen(choices_path(temp_folder()), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_a_damaged_file_is_replaced(void **state)
{
    (void)state;
    use_threads(8);
    choices_force(temp_folder(), "second");
    replace_file("tandem-plan 1\nnobody in partic");
    hear_stderr();
    expect_replaced("partic", 1);
    const char *said = heard_stderr();
    assert_non_null(strstr(said, "is not a plan of this version for Test, 8 threads"));
    assert_non_null(strstr(said, choices_path(temp_folder())));
    use_threads(9);
    choices_force(temp_folder(), "second");
    replace_file("tandem-plan 1\nZ80, portable\ntest quotient\nfirst\nend\n");
    expect_replaced("Z80", 1);
    use_threads(10);
    choices_force(temp_folder(), "strassen");
    expect_replaced("strassen", 3);
}

/* Choices that cannot be kept hold all the same. */
static void test_no_folder(void **state)
{
    (void)state;
    char path[1024];
    use_threads(11);
    temp_write("no folder", "", 0);
    snprintf(path, sizeof path, "%s", temp_path("no folder"));
    setenv("TANDEM_CACHE", path, 1);
    td_set_autotune(true);
    (void)choices_step();
    hear_stderr();
    td_autotune_stats stats = choose();
    assert_non_null(strstr(heard_stderr(), "plans cannot be kept for the next run: "));
    assert_int_equal(stats.timed, 3);
    assert_true(choices_step() != 0);
    td_set_autotune(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_decides_from_the_second_step_on),
        cmocka_unit_test(test_text_carries_choices),
        cmocka_unit_test(test_choices_for_other_shapes),
        cmocka_unit_test(test_later_shapes_go_by_the_rules),
        cmocka_unit_test(test_nothing_to_choose),
        cmocka_unit_test(test_timed_and_kept),
        cmocka_unit_test(test_a_damaged_file_is_replaced),
        cmocka_unit_test(test_no_folder),
    };
    return cmocka_run_group_tests(tests, temp_folder_setup, temp_folder_teardown);
}
