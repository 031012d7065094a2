#include "tensor/notice.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void td_notice(const char *format, ...)
{
    enum { KEPT = 16 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char said[KEPT][160];
    static int count;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    bool again = count == KEPT;
    for (int i = 0; i < count; i++) {
        again = again || strncmp(said[i], text, sizeof said[i] - 1) == 0;
    }
    if (!again) {
        snprintf(said[count], sizeof said[count], "%.*s", (int)sizeof said[count] - 1, text);
        count++;
        fprintf(stderr, "tandem: %s\n", text);
    }
    pthread_mutex_unlock(&lock);
}
