/* libgloo's event loop asks the kernel what is ready and serves it, unless another thread holds the
 * connection's lock just then: in that case it asks again at once. With more threads than cores the
 * thread with the lock may not be running, and the loop keeps it from running for a whole time
 * slice (about 4 ms). So: a loop that has got the same answer a few times and moved no data sleeps
 * a little.
 *
 * libgloo finds this epoll_wait before libc's because the library is loaded with RTLD_DEEPBIND;
 * where it is not, this is without effect. Nothing else in the process is touched. */
#include "dist/comm/engines/p2p/gloo/backoff.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include <mutex>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

static thread_local int answers; /* since data moved on this thread */

static const int PATIENCE = 2;
static const long NAP = 20000; /* nanoseconds */

template <typename Function> static Function next(const char *name)
{
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

/* ---- what the loops' threads have used ---- */

static std::mutex clocks_lock;
static std::vector<clockid_t> clocks; /* of the threads that live */
static double ended;                  /* seconds of those that have ended */

static double read_clock(clockid_t clock)
{
    struct timespec t = { 0, 0 };
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

namespace
{
/* As long as a thread with a loop lives. */
class Loop final
{
  public:
    Loop()
    {
        pthread_getcpuclockid(pthread_self(), &clock_);
        const std::lock_guard<std::mutex> guard(clocks_lock);
        clocks.push_back(clock_);
    }

    ~Loop()
    {
        const std::lock_guard<std::mutex> guard(clocks_lock);
        ended += read_clock(clock_);
        for (auto &clock : clocks) {
            if (clock == clock_) {
                clock = clocks.back();
                clocks.pop_back();
                break;
            }
        }
    }

    Loop(const Loop &) = delete;
    Loop &operator=(const Loop &) = delete;

  private:
    clockid_t clock_;
};
} // namespace

double td_gloo_loop_seconds()
{
    const std::lock_guard<std::mutex> guard(clocks_lock);
    double sum = ended;
    for (auto clock : clocks) {
        sum += read_clock(clock);
    }
    return sum;
}

/* ---- what libgloo calls ---- */

EXPORTED int epoll_wait(int fd, struct epoll_event *events, int size, int timeout)
{
    static const auto real = next<int (*)(int, struct epoll_event *, int, int)>("epoll_wait");
    static thread_local const Loop loop;
    static_cast<void>(loop);
    if (answers > PATIENCE) {
        const struct timespec nap = { 0, NAP };
        nanosleep(&nap, nullptr);
    }
    int count = real(fd, events, size, timeout);
    answers = count > 0 ? answers + 1 : 0;
    return count;
}

EXPORTED ssize_t recv(int fd, void *memory, size_t size, int flags)
{
    static const auto real = next<ssize_t (*)(int, void *, size_t, int)>("recv");
    answers = 0;
    return real(fd, memory, size, flags);
}

EXPORTED ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    static const auto real = next<ssize_t (*)(int, const struct iovec *, int)>("writev");
    answers = 0;
    return real(fd, pieces, count);
}
