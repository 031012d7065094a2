/* For test_apps_predict.sh: writes a model that has learned nothing.
 *
 * usage: worker_model NAME CLASSES PATH [KEY VALUE]...     the pairs become metadata
 */
#include "tandem.h"

#include <stdlib.h>

enum { MOST = 8 };

int main(int argc, char **argv)
{
    td_metadata metadata[MOST];
    int count = 0;
    if (argc < 4 || argc > 4 + 2 * MOST) {
        return 64;
    }
    for (int i = 4; i + 1 < argc; i += 2) {
        metadata[count++] = (td_metadata){ argv[i], argv[i + 1] };
    }
    td_manual_seed(1);
    td_module *net = td_model(argv[1], .classes = atoi(argv[2]));
    if (net == NULL ||
        td_checkpoint_save(argv[3], net, .metadata = metadata, .metadata_count = count) != TD_OK) {
        fprintf(stderr, "worker_model: %s\n", td_last_error());
        return 1;
    }
    td_module_free(net);
    return 0;
}
