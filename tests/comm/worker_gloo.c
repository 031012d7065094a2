/* A rank for test_dist_gloo_netns.sh: meets the others as the environment says, reduces until it is
 * told that the test is over or something fails, and writes what happened and when.
 *
 * usage: worker_gloo SECONDS FILE: the time-out, and a file that ends the test when it is there */
#include "tensor/clock.h"
#include "dist/dist.h"
#include "dist/comm/collectives.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 100000, PAUSE_MS = 10, SURVIVED = 7 };

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: worker_gloo SECONDS FILE\n");
        return 64;
    }
    td_status status = td_dist_init(.timeout = atof(argv[1]));
    if (status != TD_OK) {
        fprintf(stderr, "init: %s\n", td_last_error());
        return 2;
    }
    const int size = td_dist_world_size();
    td_tensor *t = td_zeros(TD_SHAPE(COUNT), TD_F32, TD_CPU);
    double over = 0, begun = 0;
    printf("backend %s\n", td_group_backend(td_dist_world()));
    for (int i = 0; over == 0; i++) {
        td_fill_(t, td_dist_rank() + 1);
        begun = td_clock();
        status = td_all_reduce(NULL, t, TD_SUM, NULL);
        if (status != TD_OK) {
            break;
        }
        if (((const float *)td_data(t))[COUNT - 1] != (float)size * (float)(size + 1) / 2) {
            fprintf(stderr, "a wrong sum\n");
            return 3;
        }
        if (i == 0) {
            puts("reduced");
            fflush(stdout);
        }
        over = access(argv[2], F_OK) == 0; /* here or there */
        if (td_all_reduce_numbers(NULL, &over, 1) != TD_OK) {
            status = TD_E_PEER;
            break;
        }
        td_sleep(PAUSE_MS / 1e3);
    }
    if (status != TD_OK) {
        fprintf(stderr, "failed after %.2f s: %s\n", td_clock() - begun, td_last_error());
        fflush(NULL);
        _exit(SURVIVED);
    }
    td_free(t);
    td_dist_destroy();
    puts("over");
    return 0;
}
