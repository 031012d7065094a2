/* libtandem-gloo.so: see api.h. No exception leaves this file. */
#include "dist/comm/engines/p2p/gloo/backoff.h"
#include "dist/comm/engines/p2p/api.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

using std::chrono::milliseconds;

/* Two methods that libgloo exports but whose headers are not installed: they close all pairs of a
 * context, and make the waits of a buffer throw. */
void context_signal(void *context, const std::string &message) __asm__(
    "_ZN4gloo9transport3tcp7Context15signalExceptionERKNSt7__cxx1112basic_stringIcSt11char_"
    "traitsIcESaIcEEE");
void buffer_signal(void *buffer, std::exception_ptr exception) __asm__(
    "_ZN4gloo9transport3tcp13UnboundBuffer15signalExceptionENSt15__exception_ptr13exception_"
    "ptrE");

namespace
{

const size_t PIECE_BYTES = 512 << 10;

thread_local std::string last_error;

struct NotYet {
};

/* Runs body() and turns what it throws into a result. */
template <typename Body> td_p2p_result guarded(Body body) noexcept
{
    try {
        body();
        return TD_P2P_OK;
    } catch (const NotYet &) {
        return TD_P2P_NOT_YET;
    } catch (const std::exception &e) {
        last_error = e.what();
    } catch (...) {
        last_error = "an unknown C++ exception";
    }
    /* libgloo has no other way to tell a time-out. */
    bool late = last_error.find("Timed out") != std::string::npos;
    return late ? TD_P2P_TIMEOUT : TD_P2P_FAILED;
}

/* libgloo writes to sockets that the other side may have closed: as long as this lives, that raises
 * no SIGPIPE. With `all`, a thread that libgloo makes meanwhile takes no signals whatever. */
class Quiet final
{
  public:
    explicit Quiet(bool all = false)
    {
        sigset_t blocked, pending;
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        blocked = pipe_;
        if (all) {
            sigfillset(&blocked);
        }
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    }

    ~Quiet()
    {
        const struct timespec now = { 0, 0 };
        if (!was_pending_) {
            sigtimedwait(&pipe_, nullptr, &now);
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

    Quiet(const Quiet &) = delete;
    Quiet &operator=(const Quiet &) = delete;

  private:
    sigset_t before_, pipe_;
    bool was_pending_;
};

milliseconds in_milliseconds(double seconds)
{
    return milliseconds(static_cast<int64_t>(std::min(std::max(seconds, 1e-3), 1e6) * 1e3));
}

/* gloo's view of our store. */
class Store final : public gloo::rendezvous::Store
{
  public:
    explicit Store(const td_p2p_options &options) : options_(options)
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        if (options_.set(options_.store, name(key).c_str(), data.data(), data.size()) != 0) {
            GLOO_THROW_IO_EXCEPTION("the store does not take the address of this rank");
        }
    }

    std::vector<char> get(const std::string &key) override
    {
        void *value;
        size_t size;
        if (options_.get(options_.store, name(key).c_str(), options_.timeout, &value, &size) != 0) {
            GLOO_THROW_IO_EXCEPTION("Timed out waiting for the address of rank ", key);
        }
        const char *bytes = static_cast<const char *>(value);
        std::vector<char> data(bytes, bytes + size);
        options_.release(value);
        return data;
    }

    void wait(const std::vector<std::string> &keys) override
    {
        for (const auto &key : keys) {
            get(key);
        }
    }

    void wait(const std::vector<std::string> &keys, const milliseconds &) override
    {
        wait(keys);
    }

  private:
    static std::string name(const std::string &key)
    {
        return "gloo/" + key;
    }

    const td_p2p_options options_;
};

class Context final : public gloo::rendezvous::Context
{
  public:
    using gloo::rendezvous::Context::Context;

    gloo::transport::Context *transport() const
    {
        return transportContext_.get();
    }
};

} // namespace

struct td_p2p {
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<Context> context;
    std::mutex lock;
    std::set<td_p2p_buffer *> waiting; /* buffers whose waits an interruption must end */
};

struct td_p2p_buffer {
    std::unique_ptr<gloo::transport::UnboundBuffer> unbound;
    td_p2p *gloo;
};

static td_p2p_result gloo_open_p2p(td_p2p **out, const td_p2p_options *options)
{
    const Quiet quiet(true);
    *out = nullptr;
    return guarded([&] {
        /* A pair waits five times this for its connection. */
        const milliseconds patience = in_milliseconds(options->timeout / 5);
        std::unique_ptr<td_p2p> gloo(new td_p2p);
        Store store(*options);
        gloo->device = gloo::transport::tcp::CreateDevice(options->address);
        gloo->context = std::make_shared<Context>(options->rank, options->size);
        gloo->context->setTimeout(patience);
        gloo->context->connectFullMesh(store, gloo->device);
        *out = gloo.release();
    });
}

static td_p2p_buffer *gloo_make_buffer(td_p2p *gloo, void *memory, size_t bytes,
                                       td_p2p_manner manner)
{
    td_p2p_buffer *buffer = nullptr;
    guarded([&] {
        std::unique_ptr<td_p2p_buffer> made(new td_p2p_buffer);
        made->unbound = gloo->context->createUnboundBuffer(memory, bytes);
        made->gloo = gloo;
        if (manner == TD_P2P_WAITS) {
            const std::lock_guard<std::mutex> guard(gloo->lock);
            gloo->waiting.insert(made.get());
        } else {
            /* From now on a wait for what is not there throws this, or what comes after it. */
            static const std::exception_ptr not_yet = std::make_exception_ptr(NotYet());
            buffer_signal(made->unbound.get(), not_yet);
        }
        buffer = made.release();
    });
    return buffer;
}

static void gloo_free_buffer(td_p2p_buffer *buffer)
{
    guarded([&] {
        {
            const std::lock_guard<std::mutex> guard(buffer->gloo->lock);
            buffer->gloo->waiting.erase(buffer);
        }
        delete buffer;
    });
}

static td_p2p_result gloo_send(td_p2p_buffer *buffer, int rank, uint64_t slot, size_t offset,
                               size_t bytes)
{
    const Quiet quiet;
    return guarded([&] { buffer->unbound->send(rank, slot, offset, bytes); });
}

static td_p2p_result gloo_receive(td_p2p_buffer *buffer, int rank, uint64_t slot, size_t offset,
                                  size_t bytes)
{
    const Quiet quiet;
    return guarded([&] { buffer->unbound->recv(rank, slot, offset, bytes); });
}

static td_p2p_result gloo_wait_send(td_p2p_buffer *buffer, double seconds)
{
    return guarded([&] { buffer->unbound->waitSend(in_milliseconds(seconds)); });
}

static td_p2p_result gloo_wait_receive(td_p2p_buffer *buffer, double seconds)
{
    return guarded([&] { buffer->unbound->waitRecv(in_milliseconds(seconds)); });
}

static const char *gloo_error()
{
    return last_error.c_str();
}

static void gloo_interrupt(td_p2p *gloo, const char *reason)
{
    guarded([&] {
        context_signal(gloo->context->transport(), reason);
        /* A pair that closes tells what is to be received, but not what it has begun to send. */
        const auto failure = std::make_exception_ptr(gloo::IoException(reason));
        const std::lock_guard<std::mutex> guard(gloo->lock);
        for (auto *buffer : gloo->waiting) {
            buffer_signal(buffer->unbound.get(), failure);
        }
    });
}

static void close_p2p(td_p2p *gloo)
{
    guarded([&] { delete gloo; });
}

extern "C" __attribute__((visibility("default"))) const td_p2p_api *td_p2p_entry(void)
{
    static const td_p2p_api api = {
        TD_P2P_VERSION,   "gloo",     PIECE_BYTES,    gloo_open_p2p,  gloo_make_buffer,
        gloo_free_buffer, gloo_send,  gloo_receive,   gloo_wait_send, gloo_wait_receive,
        nullptr,          gloo_error, gloo_interrupt, close_p2p,      td_gloo_loop_seconds,
    };
    return &api;
}
