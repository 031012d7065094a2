/* Handles Ctrl-C and SIGTERM: the first asks to stop, the second ends the program. */
#include "apps/tools/common/signals.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t requested; /* the signal's number */
static volatile sig_atomic_t speaking;

static void on_signal(int number)
{
    static const char text[] = "\nstopping after this step (again: at once)\n";
    requested = number;
    /* Not much can be done if the terminal is gone. */
    if (speaking && write(STDERR_FILENO, text, sizeof(text) - 1) < 0) {
        return;
    }
}

void signals_catch(bool speaks)
{
    speaking = speaks;
    /* SA_RESETHAND: the second one finds the default again, which ends the program. */
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART | SA_RESETHAND };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A file that reaches ulimit -f: writing then fails, as on a full disk, and says so. */
    signal(SIGXFSZ, SIG_IGN);
}

void signals_restore(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
}

bool stop_requested(void)
{
    return requested != 0;
}

int stop_exit_code(void)
{
    return 128 + (requested != 0 ? (int)requested : SIGTERM); /* another rank was asked to stop */
}
