/* Folders of pictures: order, labels, batches, bad pictures. */
#include "tandem.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"

#include "data/inspect.h"
#include "tensor/extend.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
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

/* What torchvision's ImageFolder would make of it is written beside each test that uses it. */
static void make_folder(void)
{
    temp_make_folder("set");
    temp_make_folder("set/b");
    temp_make_folder("set/b/sub");
    temp_make_folder("set/b/sub 2");
    temp_make_folder("set/B");
    temp_make_folder("set/a1");
    copy_picture("rgb.png", "set/b/z.png");
    copy_picture("420.jpg", "set/b/a.JPEG");
    copy_picture("grey.jpg", "set/b/sub/1.jpg");
    copy_picture("rgb_stored.png", "set/b/sub 2/1.png");
    copy_picture("palette_60.png", "set/B/x.png");
    copy_picture("png_in_disguise.jpg", "set/a1/10.jpg");
    copy_picture("444.jpg", "set/a1/9.jpg");
    temp_write("set/b/readme.txt", "no picture", 10);
    temp_write("set/list.jpg", "in no class", 11);
}

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

/* ---- order ---- */

static void test_order(void **state)
{
    (void)state;
    make_folder();
    td_dataset *d = open_folder(&small);
    static const char *const classes[] = { "B", "a1", "b" };
    static const char *const paths[] = { "B/x.png", "a1/10.jpg",   "a1/9.jpg",     "b/a.JPEG",
                                         "b/z.png", "b/sub/1.jpg", "b/sub 2/1.png" };
    /* torchvision sorts folders as strings: "b/sub" is before "b/sub 2", and both are behind "b".
     */
    assert_int_equal(d->classes, 3);
    assert_int_equal(d->length, 7);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(d->class_names[i], classes[i]);
    }
    for (int i = 0; i < 7; i++) {
        assert_string_equal(td_image_folder_path(d, i), paths[i]);
    }
    td_dataset_free(d);
}

/* ---- batches ---- */

static td_loader *open_loader(const td_dataset *d, int workers)
{
    return td_loader_open(d, .batch_size = 3, .workers = workers);
}

static void test_batches(void **state)
{
    (void)state;
    make_folder();
    td_image_folder_options options = { .transform = { .size = 16,
                                                       .flip = true,
                                                       .hue = 0.1,
                                                       .mean = { 0.4f, 0.5f, 0.6f },
                                                       .std = { 0.2f, 0.3f, 0.4f } } };
    td_dataset *d = open_folder(&options);
    static float first[3][3 * 3 * 16 * 16];
    static const int64_t labels[7] = { 0, 1, 1, 2, 2, 2, 2 };
    for (int workers = 0; workers < 3; workers++) { /* the same for any number of workers */
        td_loader *loader = open_loader(d, workers);
        for (int epoch = 0; epoch < 2; epoch++) {
            td_batch batch;
            int seen = 0;
            while (td_loader_next(loader, &batch)) {
                static float x[3 * 3 * 16 * 16];
                td_read(batch.x, x, TD_F32);
                int64_t y[3];
                td_read(batch.y, y, TD_I64);
                size_t bytes = (size_t)td_numel(batch.x) * sizeof(float);
                for (int i = 0; i < batch.size; i++) {
                    assert_int_equal(y[i], labels[seen + i]);
                }
                if (workers == 0 && epoch == 0) {
                    memcpy(first[batch.index], x, bytes);
                } else if (epoch == 0) {
                    assert_memory_equal(first[batch.index], x, bytes);
                } else { /* another epoch draws anew */
                    assert_true(memcmp(first[batch.index], x, bytes) != 0);
                }
                seen += (int)batch.size;
            }
            assert_int_equal(td_loader_status(loader), TD_OK);
            assert_int_equal(seen, 7);
        }
        td_loader_close(loader);
    }
    td_dataset_free(d);
}

/* One picture read alone is the picture of the set. */
static void test_one_picture(void **state)
{
    (void)state;
    make_folder();
    td_image_folder_options options = { .transform = { .size = 16, .resize = 20 } };
    td_dataset *d = open_folder(&options);
    td_tensor *x = td_new_layout(TD_SHAPE(1, 3, 16, 16), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *of_set = td_new_layout(TD_SHAPE(1, 3, 16, 16), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(1), TD_I64, TD_CPU);
    int64_t index = 4;
    assert_int_equal(d->vtable->fetch(d, &index, 1, 0, of_set, y), TD_OK);
    assert_int_equal(td_image_read(temp_path("set/b/z.png"), &options.transform, x), TD_OK);
    assert_memory_equal(td_data(x), td_data(of_set), 3 * 16 * 16 * sizeof(float));
    int64_t zero[4] = { 0 };
    double value = td_get(x, zero) * 255.0;
    assert_true(value >= 0.0 && value <= 255.0 && fabs(value - nearbyint(value)) < 1e-4);
    assert_int_equal(td_image_read(temp_path("nowhere.png"), &options.transform, x), TD_E_NOTFOUND);
    assert_error_says("nowhere.png", NULL);
    td_free(x);
    td_free(of_set);
    td_free(y);
    td_dataset_free(d);
}

/* ---- bad pictures ---- */

static void test_bad_picture(void **state)
{
    (void)state;
    make_folder();
    temp_write("set/b/m.jpg", "\xff\xd8\xff\xe0", 4);
    temp_write("set/b/n.png", "", 0);
    td_dataset *d = open_folder(&small);
    td_loader *loader = open_loader(d, 2);
    td_batch batch;
    while (td_loader_next(loader, &batch)) {
    }
    assert_int_equal(td_loader_status(loader), TD_E_FORMAT);
    assert_error_says("set/b/m.jpg", "Replace or remove it (skip_bad passes over", NULL);
    td_loader_close(loader);
    td_dataset_free(d);

    td_image_folder_options options = small;
    options.skip_bad = true;
    d = open_folder(&options);
    loader = open_loader(d, 2);
    for (int epoch = 0; epoch < 2; epoch++) {
        int64_t seen = 0;
        while (td_loader_next(loader, &batch)) {
            seen += batch.size;
        }
        assert_int_equal(td_loader_status(loader), TD_OK);
        assert_int_equal(seen, 9);
    }
    assert_int_equal(td_image_folder_bad(d), 2); /* each once */
    for (int64_t i = 0; i < d->length; i++) {
        const char *message = td_image_folder_bad_at(d, i), *path = td_image_folder_path(d, i);
        const char *says = strcmp(path, "b/m.jpg") == 0   ? "set/b/m.jpg: "
                           : strcmp(path, "b/n.png") == 0 ? "set/b/n.png: the file is empty"
                                                          : NULL;
        assert_true((message != NULL) == (says != NULL));
        assert_true(says == NULL || strstr(message, says) != NULL);
    }
    td_loader_close(loader);
    td_dataset_free(d);
}

/* A damaged image is an error in every epoch, whichever rows a crop needs. */
static void test_damage_in_any_epoch(void **state)
{
    (void)state;
    static const struct {
        const char *picture;
        double place; /* where the damage begins; */
        int kind;     /* 0: cut off; 1: zeros, as of a file that was never written to its end; 2: a
                         byte changed; 3: a marker in the data */
    } cases[] = {
        { "rgb.png", 0.9, 0 },  { "rgb.png", 0.9, 1 },  { "rgb.png", 0.9, 2 },
        { "rgb.png", 0.5, 2 },  { "420.jpg", 0.9, 0 },  { "420.jpg", 0.9, 1 },
        { "420.jpg", 0.95, 3 }, { "444.jpg", 0.99, 0 }, { "progressive.jpg", 0.9, 0 },
        { "grey.jpg", 0.9, 3 }, { "grey.png", 0.8, 2 },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        static char bytes[1 << 16];
        char path[256];
        snprintf(path, sizeof path, "tests/pictures/%s", cases[k].picture);
        FILE *in = fopen(path, "rb");
        assert_non_null(in);
        size_t size = fread(bytes, 1, sizeof bytes, in);
        fclose(in);
        size_t at = (size_t)(cases[k].place * (double)size);
        size_t last = cases[k].kind == 0 ? at : size;
        if (cases[k].kind == 1) {
            memset(bytes + at, 0, size - at);
        } else if (cases[k].kind == 2) {
            bytes[at] = (char)~bytes[at];
        } else if (cases[k].kind == 3) {
            memcpy(bytes + at, "\xff\xd9", 2);
        }
        temp_make_folder("set");
        temp_make_folder("set/a");
        temp_write("set/a/1.png", bytes, last);
        td_dataset *d = open_folder(&small);
        td_tensor *x = td_new_layout(TD_SHAPE(1, 3, 16, 16), TD_F32, TD_IMAGE, TD_CPU);
        td_tensor *y = td_new(TD_SHAPE(1), TD_I64, TD_CPU);
        for (uint64_t epoch = 0; epoch < 20; epoch++) {
            int64_t index = 0;
            if (d->vtable->fetch(d, &index, 1, epoch, x, y) != TD_E_FORMAT) {
                fail_msg("case %zu (%s) is taken in epoch %d", k, cases[k].picture, (int)epoch);
            }
            assert_error_says("set/a/1.png", "Replace or remove", NULL);
        }
        td_free(x);
        td_free(y);
        td_dataset_free(d);
        temp_folder_teardown(state);
        temp_folder_setup(state);
    }
}

static void test_nothing_readable(void **state)
{
    (void)state;
    temp_make_folder("set");
    temp_make_folder("set/a");
    temp_write("set/a/1.png", "?", 1);
    temp_write("set/a/2.png", "?", 1);
    td_dataset *d = open_folder(&(td_image_folder_options){ .skip_bad = true });
    td_loader *loader = open_loader(d, 0);
    td_batch batch;
    assert_false(td_loader_next(loader, &batch));
    assert_error_says("not one image", NULL);
    td_loader_close(loader);
    td_dataset_free(d);
}

/* ---- bad folders ---- */

static void assert_refused(const char *folder, const char *says)
{
    assert_null(td_image_folder_open(temp_path(folder)));
    assert_error_says(folder, says, NULL);
}

static void test_bad_folders(void **state)
{
    (void)state;
    assert_refused("nowhere", "No such file");
    temp_make_folder("set");
    assert_refused("set", "no sub-folders");
    temp_make_folder("set/a");
    copy_picture("rgb.png", "set/a/1.png");
    temp_make_folder("set/empty");
    temp_write("set/empty/notes.txt", "x", 1);
    assert_refused("set", "empty: no image");
    copy_picture("rgb.png", "set/empty/1.png");
    temp_write("set/a/old.TIFF", "", 0);
    assert_refused("set", "a/old.TIFF: this kind of image is not read; convert it");
    assert_int_equal(unlink(temp_path("set/a/old.TIFF")), 0);
    assert_int_equal(symlink("..", temp_path("set/a/up")), 0);
    assert_refused("set", "a/up");
    unlink(temp_path("set/a/up"));
    assert_int_equal(symlink("self", temp_path("set/a/self")), 0);
    assert_refused("set", "circle");
    unlink(temp_path("set/a/self"));
    temp_make_folder("elsewhere"); /* a link that leads out is followed */
    copy_picture("rgb.png", "elsewhere/2.png");
    assert_int_equal(symlink("../elsewhere", temp_path("set/linked")), 0);
    td_dataset *d = open_folder(&small);
    assert_int_equal(d->classes, 3);
    assert_string_equal(td_image_folder_path(d, 2), "linked/2.png");
    td_dataset_free(d);
}

enum { REFUSED = 0, TAKEN = 1, CANNOT_ASK = 2 };

/* What a process of another user is told of a folder that it may not read. */
static void open_as_nobody(void)
{
    enum { NOBODY = 65534 };
    /* In a container there may be no such user, and root's own rights may be others. */
    bool other = (getuid() != 0 || setuid(NOBODY) == 0) && access(temp_path("set"), R_OK) == 0 &&
                 access(temp_path("set/a"), R_OK) != 0;
    if (!other) {
        _exit(CANNOT_ASK);
    }
    bool refused = td_image_folder_open(temp_path("set")) == NULL &&
                   strstr(td_last_error(), "set/a: cannot be read: ") != NULL &&
                   strstr(td_last_error(), strerror(EACCES)) != NULL;
    fprintf(stderr, "%s\n", refused ? "refused" : td_last_error());
    _exit(refused ? REFUSED : TAKEN);
}

static void test_unreadable_folder(void **state)
{
    (void)state;
    temp_make_folder("set");
    temp_make_folder("set/a");
    copy_picture("rgb.png", "set/a/1.png");
    chmod(temp_path(""), 0755);
    chmod(temp_path("set"), 0755);
    chmod(temp_path("set/a"), 0);
    pid_t child = fork();
    if (child == 0) {
        open_as_nobody();
    }
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    chmod(temp_path("set/a"), 0700);
    assert_true(WIFEXITED(code));
    if (WEXITSTATUS(code) == CANNOT_ASK) {
        print_message("# skipped: no other user to be\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(code), REFUSED);
}

/* ---- many files ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

enum { CLASSES = 100, EACH = 1000 };

/* In memory where there is such a folder with room: what is timed is our work, not a disk's. */
static int memory_folder_setup(void **state)
{
    const char *own = getenv("TMPDIR");
    char *kept = own != NULL ? strdup(own) : NULL;
    struct statvfs memory;
    if (access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &memory) == 0 &&
        (memory.f_files == 0 || memory.f_favail > 2 * CLASSES * EACH)) {
        setenv("TMPDIR", "/dev/shm", 1);
    }
    int made = temp_folder_setup(state);
    kept != NULL ? setenv("TMPDIR", kept, 1) : unsetenv("TMPDIR");
    free(kept);
    return made;
}

static void test_many_files(void **state)
{
    (void)state;
    /* Asked for are 2 s. Where others share the machine that is no promise (it takes an
     * eighth of it alone), but a list that is searched for each file would take minutes. */
    const double slower = TD_SANITIZED || getenv("TANDEM_LONG") == NULL ? 20.0 : 1.0;
    temp_make_folder("set");
    for (int c = 0; c < CLASSES; c++) {
        char name[64];
        snprintf(name, sizeof name, "set/%03d", c);
        temp_make_folder(name);
        for (int i = 0; i < EACH; i++) {
            snprintf(name, sizeof name, "set/%03d/%05d.jpg", c, i);
            int file = open(temp_path(name), O_CREAT | O_WRONLY, 0600);
            assert_true(file >= 0);
            close(file);
        }
    }
    double begin = seconds();
    td_dataset *d = open_folder(&small);
    double walked = seconds() - begin;
    assert_int_equal(d->length, CLASSES * EACH);
    td_dataset_free(d);
    print_message("# %d files: listed in %.3f s\n", CLASSES * EACH, walked);
    assert_true(walked < 2.0 * slower);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_batches, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_one_picture, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bad_picture, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_damage_in_any_epoch, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_readable, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_bad_folders, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_unreadable_folder, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_many_files, memory_folder_setup, temp_folder_teardown),
    };
    return cmocka_run_group_tests_name("data: folders of pictures", tests, NULL, NULL);
}
