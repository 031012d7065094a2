/* Names of a folder's classes and files: hidden ones, labels by name, what no list could hold. */
#include "tandem.h"
#include "data/inspect.h"
#include "tensor/extend.h"
#include "tensor/system/text.h"
#include "tests/help/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- making folders ---- */

static void copy_picture(const char *picture, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/pictures/%s", picture);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    static char bytes[1 << 16];
    size_t size = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    temp_write(name, bytes, size);
}

static void make_folders(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        temp_make_folder(names[i]);
    }
}

#define MAKE_FOLDERS(...)                                                                          \
    make_folders((const char *const[]){ __VA_ARGS__ },                                             \
                 sizeof(const char *[]){ __VA_ARGS__ } / sizeof(const char *))

static td_dataset *open_folder(const td_image_folder_options *options)
{
    td_image_folder_options o = *options;
    o.folder = temp_path("set");
    td_dataset *dataset = td_image_folder_open_at(o, TD_HERE);
    if (dataset == NULL) {
        fail_msg("%s", td_last_error());
    }
    return dataset;
}

static const td_image_folder_options small = { .transform = { .size = 16 } };

/* ---- hidden files ---- */

static void test_hidden(void **state)
{
    (void)state;
    MAKE_FOLDERS("set", "set/cat", "set/dog", "set/dog/deep", "set/.ipynb_checkpoints",
                 "set/cat/.ipynb_checkpoints", "set/__MACOSX", "set/__MACOSX/cat", "set/@eaDir",
                 "set/dog/deep/@eaDir", "set/.empty");
    static const char *const images[] = { "set/cat/1.png",
                                          "set/dog/deep/2.png",
                                          "set/.ipynb_checkpoints/1-checkpoint.png",
                                          "set/cat/.ipynb_checkpoints/1-checkpoint.png",
                                          "set/@eaDir/1.png",
                                          "set/dog/deep/@eaDir/1.png",
                                          "set/dog/.hidden.jpg" };
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        copy_picture("rgb.png", images[i]);
    }
    temp_write("set/cat/._1.png", "Mac OS X", 8);
    temp_write("set/cat/._old.bmp", "Mac OS X", 8); /* its suffix would be an error */
    temp_write("set/__MACOSX/cat/._1.png", "Mac OS X", 8);
    temp_write("set/Thumbs.db", "x", 1);
    temp_write("set/dog/DESKTOP.INI", "x", 1);
    FILE *said = fopen(temp_path("said"), "w");
    int terminal = dup(STDERR_FILENO);
    assert_true(said != NULL && terminal >= 0 && dup2(fileno(said), STDERR_FILENO) >= 0);
    td_dataset *d = open_folder(&small);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    fclose(said);
    char text[4096] = "";
    FILE *in = fopen(temp_path("said"), "r");
    assert_non_null(in);
    text[fread(text, 1, sizeof text - 1, in)] = '\0';
    fclose(in);
    assert_non_null(strstr(text, "set: skipped 11 hidden files and folders"));
    assert_ptr_equal(strchr(text, '\n'), strrchr(text, '\n')); /* one line */
    assert_int_equal(d->classes, 2);
    assert_int_equal(d->length, 2);
    assert_string_equal(d->class_names[0], "cat");
    assert_string_equal(td_image_folder_path(d, 1), "dog/deep/2.png");
    td_dataset_free(d);
}

/* ---- classes by name ---- */

static td_dataset *open_by_names(const char *const *names, int count)
{
    return td_image_folder_open(temp_path("set"), .transform = small.transform,
                                .class_names = names, .classes = count);
}

static void check_labels(const td_dataset *d, const int64_t *labels, int count)
{
    assert_int_equal(d->length, count);
    td_tensor *x = td_new_layout(TD_SHAPE(1, 3, 16, 16), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(1), TD_I64, TD_CPU);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(d->vtable->fetch(d, &i, 1, 0, x, y), TD_OK);
        assert_int_equal(*(const int64_t *)td_data(y), labels[i]);
    }
    td_free(x);
    td_free(y);
}

static void test_classes_by_name(void **state)
{
    (void)state;
    MAKE_FOLDERS("set", "set/ant", "set/cow", "elsewhere");
    copy_picture("rgb.png", "set/ant/1.png");
    copy_picture("rgb.png", "set/cow/1.png");
    static const char *const sorted[] = { "ant", "bee", "cow" }, *turned[] = { "cow", "x", "ant" };
    td_dataset *d = open_by_names(sorted, 3); /* fewer sub-folders */
    assert_non_null(d);
    assert_int_equal(d->classes, 3);
    assert_string_equal(d->class_names[1], "bee");
    check_labels(d, (int64_t[]){ 0, 2 }, 2);
    td_dataset_free(d);
    d = open_by_names(turned, 3); /* another order */
    assert_non_null(d);
    check_labels(d, (int64_t[]){ 2, 0 }, 2);
    td_dataset_free(d);
    copy_picture("rgb.png", "elsewhere/2.png"); /* a link is a class of its own name */
    assert_int_equal(symlink("../elsewhere", temp_path("set/bee")), 0);
    d = open_by_names(sorted, 3);
    assert_non_null(d);
    check_labels(d, (int64_t[]){ 0, 1, 2 }, 3);
    td_dataset_free(d);
    assert_null(open_by_names(turned, 3)); /* renamed */
    assert_error_says("'bee' has the name of no class", "3 classes: 'ant', 'bee', 'cow'",
                      "3 classes: 'cow', 'x', 'ant'", NULL);
    assert_null(open_by_names(sorted, 2)); /* more */
    assert_error_says("'cow' has the name of no class", "2 classes: 'ant', 'bee'", NULL);
    assert_int_equal(rename(temp_path("set/ant"), temp_path("set/Ant")), 0); /* another case */
    assert_null(open_by_names(sorted, 3));
    assert_error_says("'Ant' has the name of no class; the nearest is 'ant'. The folder", NULL);
    static const char *const accents[] = { "caf\xc3\xa9", "bee", "cow" }; /* in one character */
    assert_int_equal(rename(temp_path("set/Ant"), temp_path("set/cafe\xcc\x81")), 0);
    assert_null(open_by_names(accents, 3));
    assert_error_says("whose accents are written in the other way", "convmv", NULL);
}

/* A split keeps the labels, too. */
static void test_split_by_name(void **state)
{
    (void)state;
    MAKE_FOLDERS("set", "set/ant", "set/cow");
    copy_picture("rgb.png", "set/ant/1.png");
    copy_picture("rgb.png", "set/ant/2.png");
    copy_picture("rgb.png", "set/cow/1.png");
    copy_picture("rgb.png", "set/cow/2.png");
    static const char *const names[] = { "cow", "bee", "ant" };
    for (int val = 0; val < 2; val++) {
        td_dataset *d = td_image_folder_open(temp_path("set"), .transform = small.transform,
                                             .val_fraction = 0.5, .val = val, .class_names = names,
                                             .classes = 3);
        assert_non_null(d);
        check_labels(d, (int64_t[]){ 2, 0 }, 2);
        td_dataset_free(d);
    }
}

/* Names that no list could hold; messages show them without what a terminal obeys. */
static void test_names_of_classes(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "caf\xe9",             /* Latin-1 */
        "z\x1b[2J",            /* clears a terminal */
        "two\nlines",          /* */
        "z\302\2332J",         /* the same in one character */
        "\xe2\x80\xaegnp.exe", /* turns what follows */
        "\xef\xbb\xbfmark",    /* */
        " ",
    };
    MAKE_FOLDERS("set", "set/good");
    copy_picture("rgb.png", "set/good/1.png");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[64];
        snprintf(path, sizeof path, "set/%s", bad[i]);
        temp_make_folder(path);
        assert_null(td_image_folder_open(temp_path("set")));
        assert_error_says("set: a sub-folder: ", NULL);
        assert_true(td_is_plain_text(td_last_error()));
        assert_int_equal(rmdir(temp_path(path)), 0);
    }
    static const char *const good[] = { "caf\xc3\xa9", "\xe7\x8c\xab", "two words ", "a'b\"c\\" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char path[64], file[80];
        snprintf(path, sizeof path, "set/%s", good[i]);
        snprintf(file, sizeof file, "%s/1.png", path);
        temp_make_folder(path);
        copy_picture("rgb.png", file);
    }
    td_dataset *d = open_folder(&small);
    assert_int_equal(d->classes, 5);
    td_dataset_free(d);
    temp_write("set/good/0\x1b[31m\n.png", "?",
               1); /* a file of any name is taken, or shown clean */
    static char list[] = "set/good/0?[31m?.png";
    d = open_folder(&small);
    td_loader *loader = td_loader_open(d, .batch_size = 3);
    td_batch batch;
    while (td_loader_next(loader, &batch)) {
    }
    assert_error_says(list, NULL);
    assert_true(td_is_plain_text(td_last_error()));
    td_loader_close(loader);
    td_dataset_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hidden, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_classes_by_name, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_split_by_name, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_names_of_classes, temp_folder_setup,
                                        temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: names of classes and files", tests, NULL, NULL);
}
