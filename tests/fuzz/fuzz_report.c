/* Fuzzing the files of apps/report: any bytes are refused with a message that names the file, or
 * make a page in which texts stay texts: two scripts, and no more. The first byte says which of a
 * run's files follows; metrics go in front of settings, which are nothing alone. */
#include "apps/tools/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* A folder whose files are links to memory; they are made once. */
static const char *folder_of(const char *names[3], int files[3])
{
    static char folder[] = "/tmp/fuzz_report.XXXXXX";
    require(mkdtemp(folder) != NULL);
    for (int i = 0; i < 3; i++) {
        char link[64], target[64];
        files[i] = memfd_create(names[i], 0);
        snprintf(link, sizeof link, "%s/%s", folder, names[i]);
        snprintf(target, sizeof target, "/proc/%d/fd/%d", (int)getpid(), files[i]);
        require(files[i] >= 0 && symlink(target, link) == 0);
    }
    return folder;
}

static void check_page(const report_run *run)
{
    char *page = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&page, &size);
    require(out != NULL && report_page(out, run, 1) == TD_OK && fclose(out) == 0);
    int scripts = 0;
    for (const char *at = page; (at = strstr(at, "<script")) != NULL; at++) {
        scripts++;
    }
    require(scripts == 2 && strlen(page) == size);
    free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    /* The folder has no trace.json; the trace is read as a single file. */
    static const char *names[3] = { "metrics.csv", "settings.json", "trace" };
    static const char metrics[] = "step,train/loss\n1,2\n2,1.5\n";
    static const char *folder;
    static int files[3];
    folder = folder != NULL ? folder : folder_of(names, files);
    int which = size > 0 ? bytes[0] % 3 : 0;
    size_t rest = size > 0 ? size - 1 : 0;
    for (int i = 0; i < 3; i++) {
        require(ftruncate(files[i], 0) == 0);
    }
    require(pwrite(files[which], bytes + (size > 0), rest, 0) == (ssize_t)rest);
    if (which == 1) {
        require(pwrite(files[0], metrics, sizeof metrics - 1, 0) == sizeof metrics - 1);
    }
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, which == 1 ? "" : names[which]);
    report_run run;
    if (report_read(path, &run) == TD_OK) {
        check_page(&run);
    } else {
        require(strncmp(td_last_error(), folder, strlen(folder)) == 0);
    }
    report_run_free(&run);
    return 0;
}
