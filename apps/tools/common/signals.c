/* Handles Ctrl-C and SIGTERM: the first asks to stop, the second ends the program. */
#include "apps/tools/common/signals.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* What asks to stop: a user (INT), the end of a terminal (HUP), and what batch systems send before
 * they kill. */
static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU };
enum { CAUGHT = sizeof caught / sizeof caught[0] };

static volatile sig_atomic_t requested; /* the first signal's number */
static volatile sig_atomic_t speaking;

static void on_signal(int number)
{
    static const char text[] = "\nstopping after this step (Ctrl-C again: at once)\n";
    if (requested != 0) {
        return; /* a batch system sends several, to this process and by its launcher */
    }
    requested = number;
    signal(SIGPIPE, SIG_IGN); /* what reads the output may end with the terminal */
    /* Not much can be done if the terminal is gone. */
    if (speaking && write(STDERR_FILENO, text, sizeof(text) - 1) < 0) {
        return;
    }
}

/* Whether a launcher looks after this process, which passes on each Ctrl-C and kills. */
static bool is_launched(void)
{
    return getenv("TANDEM_ATTEMPT") != NULL || getenv("TANDEM_SPAWN_ID") != NULL;
}

void signals_catch(bool speaks)
{
    struct sigaction before, action = { .sa_handler = on_signal };
    sigemptyset(&action.sa_mask);
    speaking = speaks;
    for (int i = 0; i < CAUGHT; i++) {
        /* SA_RESETHAND: the second Ctrl-C finds the default again, which ends the program. */
        bool once = caught[i] == SIGINT && !is_launched();
        action.sa_flags = SA_RESTART | (once ? SA_RESETHAND : 0);
        sigaction(caught[i], NULL, &before);
        bool usual = caught[i] == SIGINT || caught[i] == SIGTERM;
        if (usual || before.sa_handler != SIG_IGN) { /* nohup ignores HUP */
            sigaction(caught[i], &action, NULL);
        }
    }
    /* A file that reaches ulimit -f: writing then fails, as on a full disk, and says so; also the
     * model's, after the training. */
    signal(SIGXFSZ, SIG_IGN);
}

void signals_restore(void)
{
    for (int i = 0; i < CAUGHT; i++) {
        struct sigaction now;
        sigaction(caught[i], NULL, &now);
        if (now.sa_handler == on_signal) {
            signal(caught[i], SIG_DFL);
        }
    }
}

bool stop_requested(void)
{
    return requested != 0;
}

int stop_exit_code(void)
{
    return 128 + (requested != 0 ? (int)requested : SIGTERM); /* another rank was asked to stop */
}
