/* For test_apps_predict.sh: writes a model that has learned nothing.
 *
 * usage: worker_model NAME CLASSES PATH [ARCH [NAMES-OF-CLASSES]]     the last two become metadata
 */
#include "tandem.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc < 4) {
        return 64;
    }
    td_manual_seed(1);
    td_module *net = td_model(argv[1], .classes = atoi(argv[2]));
    const td_metadata metadata[] = { { "arch", argc > 4 ? argv[4] : "" },
                                     { "classes", argc > 5 ? argv[5] : "" } };
    td_checkpoint checkpoint = { .model = net, .metadata = metadata, .metadata_count = argc - 4 };
    if (net == NULL || td_checkpoint_save(argv[3], &checkpoint) != TD_OK) {
        fprintf(stderr, "worker_model: %s\n", td_last_error());
        return 1;
    }
    td_module_free(net);
    return 0;
}
