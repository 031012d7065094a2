#include "apps/tools/train_net/pictures.h"

#include "apps/tools/common/ranks.h"
#include "dist/dist.h"
#include "data/inspect.h"

#include <inttypes.h>

/* Marks this rank's bad pictures; among the ranks that met one, the first has the largest mark. */
static int32_t mark_of(int rank)
{
    return td_dist_world_size() - rank;
}

static void mark_own(const td_dataset *folder, int32_t *marks)
{
    int64_t sample;
    for (int64_t i = 0; td_image_folder_bad_at(folder, i, &sample) != NULL; i++) {
        marks[sample] = mark_of(td_dist_rank());
    }
}

static void print_own(const td_dataset *folder, const int32_t *marks)
{
    int64_t sample;
    const char *message;
    for (int64_t i = 0; (message = td_image_folder_bad_at(folder, i, &sample)) != NULL; i++) {
        if (marks[sample] == mark_of(td_dist_rank())) {
            fprintf(stderr, "skipped: %s\n", message);
        }
    }
}

static int64_t count_marked(const int32_t *marks, int64_t length)
{
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) {
        count += marks[i] != 0;
    }
    return count;
}

td_status pictures_report_bad(const td_dataset *folder)
{
    double met = (double)td_image_folder_bad(folder);
    TD_TRY(ranks_sum(&met, 1));
    if (met == 0) {
        return TD_OK;
    }
    td_tensor *marks = td_zeros(TD_SHAPE(folder->length), TD_I32, TD_CPU);
    if (marks == NULL) {
        return TD_E_NOMEM;
    }
    mark_own(folder, td_data_rw(marks));
    td_status status = td_dist_is_initialized() ? td_all_reduce(NULL, marks, TD_MAX, NULL) : TD_OK;
    if (status == TD_OK) {
        int64_t count = count_marked(td_data(marks), folder->length);
        td_printf_rank0("%" PRId64 " of %" PRId64
                        " images could not be read; others took their places (see stderr)\n",
                        count, folder->length);
        print_own(folder, td_data(marks));
    }
    td_free(marks);
    return status;
}
