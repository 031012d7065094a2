/* Says whether two training runs, or two checkpoints, are equal, bit for bit; where they differ, it
 * names the first step, operation, tensor and element, with both values.
 *
 *   compare a.safetensors b.safetensors    two checkpoints, or models
 *   compare exp/a exp/b                    two runs: folders of --log-dir, or train_net's OUT_DIR
 *
 * Of runs it reads what --hash-every has written (apps/tools/common/hashes.h), and all checkpoints
 * that have the same name in both folders. Exit code: 0: equal; 1: they differ; 2: they cannot be
 * compared. */
#include "apps/tools/common/cli.h"
#include "apps/tools/common/hashes.h"
#include "nn/io/fingerprint.h"
#include "tensor/extend.h"
#include "tensor/storage.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EQUAL, DIFFER, FAILED };

static int compare_failed(void)
{
    (void)app_failed("compare");
    return FAILED;
}

/* ---- checkpoints ---- */

typedef struct checkpoint {
    const char *path;
    td_safetensors *file;
    td_fingerprints f;
} checkpoint;

static td_status open_checkpoint(checkpoint *c, const char *path)
{
    *c = (checkpoint){ .path = path };
    TD_TRY(td_safetensors_open(path, &c->file));
    td_status status = td_fingerprint_file(&c->f, c->file);
    status = status == TD_OK ? td_fingerprint_check(c->file, path) : status;
    return status == TD_OK ? TD_OK : td_fail_context(status, "'%s'", path);
}

static void close_checkpoint(checkpoint *c)
{
    td_fingerprints_free(&c->f);
    td_safetensors_close(c->file);
}

static const td_fingerprint_item *find_item(const checkpoint *c, const char *name)
{
    for (int i = 0; i < c->f.count; i++) {
        if (strcmp(c->f.items[i].name, name) == 0) {
            return &c->f.items[i];
        }
    }
    return NULL;
}

/* "12.5 (0x41480000)" */
static void print_element(const td_safetensors_entry *e, const unsigned char *bytes)
{
    double value;
    td_storage storage;
    td_tensor one;
    td_init_borrowed(&one, &storage, (void *)(uintptr_t)bytes, TD_SHAPE(1), e->dtype);
    td_read(&one, &value, TD_F64);
    printf("%.9g (0x", value);
    for (size_t i = td_dtype_size(e->dtype); i-- > 0;) {
        printf("%02x", bytes[i]);
    }
    printf(")");
}

/* Where two tensors of one form differ first, and in how many elements. */
static void print_first_element(const td_safetensors_entry *e, const unsigned char *a,
                                const unsigned char *b)
{
    size_t size = td_dtype_size(e->dtype), first = 0;
    int64_t differ = 0, all = (int64_t)(e->bytes / size), below = all;
    for (size_t at = e->bytes; at >= size; at -= size) {
        bool differs = memcmp(a + at - size, b + at - size, size) != 0;
        first = differs ? at - size : first;
        differ += differs;
    }
    printf("%s[", e->name);
    for (int d = 0; d < e->shape.ndim; d++) {
        below /= e->shape.dim[d];
        printf("%s%" PRId64, d > 0 ? "," : "", (int64_t)(first / size) / below % e->shape.dim[d]);
    }
    printf("]: ");
    print_element(e, a + first);
    printf(" and ");
    print_element(e, b + first);
    printf(", and %" PRId64 " other elements of %" PRId64 "\n", differ - 1, all);
}

static td_status print_values(const checkpoint *a, const checkpoint *b,
                              const td_safetensors_entry *x, const td_safetensors_entry *y)
{
    unsigned char *values = malloc(2 * x->bytes);
    td_status status = values != NULL ? TD_OK : td_fail(TD_E_NOMEM, "no memory");
    status = status == TD_OK ? td_safetensors_read(a->file, x, values) : status;
    status = status == TD_OK ? td_safetensors_read(b->file, y, values + x->bytes) : status;
    if (status == TD_OK) {
        print_first_element(x, values, values + x->bytes);
    }
    free(values);
    return status;
}

static td_status print_difference(const checkpoint *a, const checkpoint *b, const char *name)
{
    const td_safetensors_entry *x = td_safetensors_find(a->file, name);
    const td_safetensors_entry *y = td_safetensors_find(b->file, name);
    if (x == NULL || y == NULL) {
        printf("%s: '%.80s' and '%.80s'\n", name, td_safetensors_metadata(a->file, name),
               td_safetensors_metadata(b->file, name));
        return TD_OK;
    }
    if (x->dtype != y->dtype || !td_shape_equal(x->shape, y->shape)) {
        printf("%s: %s%s and %s%s: other models\n", name, td_dtype_name(x->dtype),
               td_describe_shape(x->shape), td_dtype_name(y->dtype), td_describe_shape(y->shape));
        return TD_OK;
    }
    return print_values(a, b, x, y);
}

/* Names what one of the two has alone. Returns how many. */
static int print_missing(const checkpoint *in, const checkpoint *missing_in)
{
    int count = 0;
    for (int i = 0; i < in->f.count; i++) {
        const char *name = in->f.items[i].name;
        if (find_item(missing_in, name) == NULL && count++ < 3) {
            printf("only %s has %s\n", in->path, name);
        }
    }
    return count;
}

static int compare_open(const checkpoint *a, const checkpoint *b)
{
    int alone = print_missing(a, b) + print_missing(b, a), differ = 0;
    for (int i = 0; i < a->f.count; i++) {
        const td_fingerprint_item *x = &a->f.items[i], *y = find_item(b, x->name);
        if (y != NULL && x->value != y->value && differ++ == 0 &&
            print_difference(a, b, x->name) != TD_OK) {
            return compare_failed();
        }
    }
    bool equal = alone + differ == 0;
    printf("%s and %s %s: ", a->path, b->path, equal ? "are equal" : "differ");
    if (equal) {
        printf("%d tensors and texts, fingerprint %016" PRIx64 "\n", a->f.count, a->f.all);
    } else {
        printf("%d of %d tensors and texts\n", alone + differ, a->f.count + alone);
    }
    return equal ? EQUAL : DIFFER;
}

static int compare_checkpoints(const char *path_a, const char *path_b)
{
    checkpoint a, b = { .path = path_b };
    bool opened = open_checkpoint(&a, path_a) == TD_OK && open_checkpoint(&b, path_b) == TD_OK;
    int code = opened ? compare_open(&a, &b) : compare_failed();
    close_checkpoint(&a);
    close_checkpoint(&b);
    return code;
}

/* ---- hashes of steps ---- */

typedef struct hash_file {
    char path[4096];
    FILE *in;
    char *text; /* the line, into which what, name and value point */
    size_t size;
    int64_t number, step; /* of the line; after the last line the step is INT64_MAX */
    const char *what, *name, *value;
    bool operation;
} hash_file;

/* Where two runs differ first. */
typedef struct finding {
    bool found;
    int rank;
    int64_t step, number; /* of the first line that differs */
    int64_t steps;        /* that both have, up to there */
    bool tensors_only;    /* operations are others, and were not compared */
    char first[1400];     /* the line */
    char tensor[1400];    /* that of the first tensor, if the first line is an operation's */
} finding;

/* The next line; with tensors_only operations are skipped. A line without an end is none: the run
 * was killed while it wrote. */
static td_status next_line(hash_file *f, bool tensors_only)
{
    do {
        char *fields[3] = { "", "", "" }, *end;
        ssize_t length = getline(&f->text, &f->size, f->in);
        bool over = length <= 0 || f->text[length - 1] != '\n';
        f->number++;
        f->step = INT64_MAX;
        if (!over) {
            f->text[length - 1] = '\0';
            f->step = strtoll(f->text, &end, 10);
            for (int i = 0; i < 3 && end != NULL && *end == '\t'; i++) {
                *end = '\0';
                fields[i] = end + 1;
                end = strchr(fields[i], '\t');
            }
        }
        TD_CHECK(over || (f->step >= 1 && strlen(fields[2]) == 16), TD_E_FORMAT,
                 "%s, line %" PRId64 ": '%.40s' is no line of hashes", f->path, f->number, f->text);
        f->what = fields[0];
        f->name = fields[1];
        f->value = fields[2];
        f->operation = strcmp(f->what, "forward") == 0 || strcmp(f->what, "backward") == 0;
    } while (tensors_only && f->operation);
    return TD_OK;
}

static bool same_name(const hash_file *a, const hash_file *b)
{
    return strcmp(a->what, b->what) == 0 && strcmp(a->name, b->name) == 0;
}

/* Notes that two lines differ. Returns whether a tensor after them may say more. */
static bool note_difference(finding *f, const hash_file *a, const hash_file *b)
{
    if (f->found && a->step == b->step && a->operation) {
        return true;
    }
    char *to = f->found ? f->tensor : f->first;
    const hash_file *sooner = b->step < a->step ? b : a;
    if (a->step == b->step && same_name(a, b)) {
        snprintf(to, sizeof f->first, "%s %.600s: %s and %s", a->what, a->name, a->value, b->value);
    } else if (a->step == b->step) {
        snprintf(to, sizeof f->first, "%s %.600s in one, %s %.600s in the other: other models",
                 a->what, a->name, b->what, b->name);
    } else if (!f->found) {
        snprintf(to, sizeof f->first, "only %.1000s has this step", sooner->path);
    }
    f->number = f->found ? f->number : a->number;
    f->step = f->found ? f->step : sooner->step;
    f->found = true;
    return a->step == b->step && a->operation;
}

static td_status compare_lines(hash_file *a, hash_file *b, finding *f)
{
    bool tensors_only = false;
    for (bool more = true; more;) {
        TD_TRY(next_line(a, tensors_only));
        TD_TRY(next_line(b, tensors_only));
        if ((a->operation || b->operation) && !same_name(a, b)) { /* other ranks or shards */
            tensors_only = f->tensors_only = true;
            TD_TRY(a->operation ? next_line(a, true) : TD_OK);
            TD_TRY(b->operation ? next_line(b, true) : TD_OK);
        }
        bool step =
            a->step == b->step && strcmp(a->what, "step") == 0 && strcmp(b->what, "step") == 0;
        if (step) { /* what differs is said by the next lines */
            tensors_only = false;
            f->steps += !f->found;
        }
        bool same = a->step == b->step && same_name(a, b) && strcmp(a->value, b->value) == 0;
        more = step ? !f->found : same ? a->step < INT64_MAX : note_difference(f, a, b);
    }
    return TD_OK;
}

static bool open_hashes(hash_file *f, const char *dir, int rank)
{
    hashes_path(dir, rank, f->path);
    f->in = fopen(f->path, "r");
    return f->in != NULL;
}

static void close_hashes(hash_file *f)
{
    free(f->text);
    if (f->in != NULL) {
        fclose(f->in);
    }
}

/* *ranks: how many have files in both folders. */
static td_status compare_hashes(const char *dir_a, const char *dir_b, finding *first, int *ranks)
{
    bool both = true;
    td_status status = TD_OK;
    for (*ranks = 0; both && status == TD_OK; *ranks += both) {
        hash_file a = { .in = NULL }, b = { .in = NULL };
        finding f = { .rank = *ranks };
        both = open_hashes(&a, dir_a, *ranks) && open_hashes(&b, dir_b, *ranks);
        status = both ? compare_lines(&a, &b, &f) : TD_OK;
        bool sooner = f.found && (!first->found || f.step < first->step ||
                                  (f.step == first->step && f.number < first->number));
        *first = *ranks == 0 || sooner ? f : *first;
        close_hashes(&a);
        close_hashes(&b);
    }
    return status;
}

/* ---- runs ---- */

/* Programs save FILE.safetensors, and train_net ckpt_ep_001. */
static int is_checkpoint(const struct dirent *entry)
{
    const char *name = entry->d_name, *dot = strrchr(name, '.');
    return (dot != NULL && strcmp(dot, ".safetensors") == 0) ||
           (dot == NULL && strncmp(name, "ckpt_ep_", 8) == 0);
}

/* Checkpoints of the same names in both folders, up to the first that differs. */
static int compare_folders(const char *dir_a, const char *dir_b, const char *inside, int *count)
{
    struct dirent **list = NULL;
    char a[4096], b[4096];
    snprintf(a, sizeof a, "%s%s", dir_a, inside);
    int code = EQUAL, found = scandir(a, &list, is_checkpoint, versionsort);
    for (int i = 0; i < found; i++) {
        snprintf(a, sizeof a, "%s%s/%s", dir_a, inside, list[i]->d_name);
        snprintf(b, sizeof b, "%s%s/%s", dir_b, inside, list[i]->d_name);
        if (code == EQUAL && access(b, F_OK) == 0) {
            code = compare_checkpoints(a, b);
            (*count)++;
        }
        free(list[i]);
    }
    free(list);
    return code;
}

static int compare_runs(const char *dir_a, const char *dir_b)
{
    finding f = { .found = false };
    int ranks, files = 0;
    if (compare_hashes(dir_a, dir_b, &f, &ranks) != TD_OK) {
        return compare_failed();
    }
    if (f.found) {
        printf("%s and %s differ, first in step %" PRId64 " on rank %d:\n  %s\n", dir_a, dir_b,
               f.step, f.rank, f.first);
        printf("%s%s%s", f.tensor[0] != '\0' ? "  " : "", f.tensor,
               f.tensor[0] != '\0' ? "\n" : "");
    } else if (ranks > 0) {
        printf("%s and %s are equal in %" PRId64 " hashed steps of %d rank%s%s\n", dir_a, dir_b,
               f.steps, ranks, ranks > 1 ? "s" : "",
               f.tensors_only ? ", operations apart, which are not the same" : "");
    }
    int code = compare_folders(dir_a, dir_b, "", &files);
    code = code == EQUAL ? compare_folders(dir_a, dir_b, "/checkpoints", &files) : code;
    if (ranks + files == 0) {
        fprintf(stderr,
                "compare: %s and %s have neither hashes of steps (--hash-every) nor checkpoints of "
                "the same name\n",
                dir_a, dir_b);
        return FAILED;
    }
    return code == EQUAL && f.found ? DIFFER : code;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int main(int argc, char **argv)
{
    cli_option none[1];
    cli_rest rest = { .name = "A B", .wanted = "two runs or two checkpoints", .least = 2 };
    cli_parse_rest(argc, argv,
                   "Says whether two training runs (folders) or two checkpoints (files) are equal, "
                   "bit for bit, and names the first step, operation, tensor and element that "
                   "differs. Exit code: 0: equal; 1: they differ; 2: they cannot be compared.",
                   none, 0, &rest);
    const char *a = rest.values[0], *b = rest.values[1];
    CLI_CHECK(rest.count <= 2, "give two runs or two checkpoints");
    if (is_folder(a) != is_folder(b)) {
        fprintf(stderr, "compare: of %s and %s one is a folder, the other is not\n", a, b);
        return FAILED;
    }
    return is_folder(a) ? compare_runs(a, b) : compare_checkpoints(a, b);
}
