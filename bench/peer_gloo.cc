/* All-reduce by libgloo's own ring, for bench/allreduce.py; with
 * dist/comm/engines/p2p/gloo/backoff.cc, without which it stalls for milliseconds where cores are
 * few. usage: peer_gloo RANK SIZE FOLDER (an empty one, where the ranks meet) */
#include "bench/allreduce.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

static int reduce(void *user, float *values, size_t count)
{
    gloo::AllreduceOptions options(*static_cast<std::shared_ptr<gloo::Context> *>(user));
    void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(sum);
    options.setOutput(values, count);
    gloo::allreduce(options);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        allreduce_fail("usage: peer_gloo RANK SIZE FOLDER");
    }
    const int rank = atoi(argv[1]), size = atoi(argv[2]);
    float *values = static_cast<float *>(aligned_alloc(4096, ALLREDUCE_LARGEST));
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::rendezvous::FileStore store(argv[3]);
    context->connectFullMesh(store, device);
    std::shared_ptr<gloo::Context> base = context;
    allreduce_measure(rank, size, values, reduce, &base);
    free(values);
    return 0;
}
