/* The emulated GPU's blocks: their threads are fibers, run one at a time. A fiber takes thread
 * after thread as long as none waits; only threads that meet a barrier cost a stack of their own.
 *
 * A barrier that some threads never reach, which hangs or corrupts on a GPU, ends the program. */
#include "tests/emulate/cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum { MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 64 << 10, COLOURS = 61, COLOUR_BYTES = 192 };

struct barrier {
    int arrived;
    unsigned generation;
};

struct fiber {
    void *sp;
    void *stack;
    int thread;
    uint3 index;    /* its threadIdx */
    barrier *waits; /* for its generation to change */
    unsigned generation;
    bool running; /* has a thread that has begun */
};

struct block {
    int threads, next; /* next: the first that has not begun */
    uint3 next_index;
    int live;
    unsigned live_lanes[MAX_THREADS / WARP];
    barrier all, warp[MAX_THREADS / WARP];
    uint64_t given[MAX_THREADS]; /* to shuffles */
    fiber fibers[MAX_THREADS];
    int fiber_count;
    fiber *current;
    void *caller; /* stack pointer of who runs the block */
    void (*body)(void *arguments);
    void *arguments;
} now;

#ifdef __x86_64__
extern "C" void td_emulate_switch(void **save, void *load);
__asm__(".text\n"
        ".type td_emulate_switch,@function\n"
        "td_emulate_switch:\n"
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp,(%rdi)\n movq %rsi,%rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
        "ret\n"
        ".size td_emulate_switch,.-td_emulate_switch\n");
#else
#error "the emulated GPU switches stacks on x86-64 only"
#endif

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulated GPU: %s (block %u,%u,%u, thread %u,%u,%u)\n", what, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}

int lanes_of(unsigned mask)
{
    return __builtin_popcount(mask);
}

void release(barrier *b)
{
    b->arrived = 0;
    b->generation++;
}

/* A thread has returned: barriers wait for one less. */
void leave(int thread)
{
    int warp = thread / WARP;
    now.live--;
    now.live_lanes[warp] &= ~(1u << thread % WARP);
    if (now.all.arrived > 0 && now.all.arrived >= now.live) {
        release(&now.all);
    }
    if (now.warp[warp].arrived > 0 && now.warp[warp].arrived >= lanes_of(now.live_lanes[warp])) {
        release(&now.warp[warp]);
    }
}

void run_threads();

void make_fiber(fiber *f)
{
    if (f->stack == NULL) {
        f->stack = mmap(NULL, STACK_BYTES + COLOURS * COLOUR_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (f->stack == MAP_FAILED) {
            fail("no memory for a thread's stack");
        }
    }
    /* Stacks that all began at the same place of their pages would fight for a few lines of the
     * cache. */
    size_t apart = (size_t)(f - now.fibers) % COLOURS * COLOUR_BYTES;
    /* What the switch pops: six registers, then the address to return to, 16-byte aligned. */
    void **top = (void **)((char *)f->stack + STACK_BYTES + apart) - 2;
    top[0] = (void *)run_threads;
    top[1] = NULL;
    f->sp = top - 6;
    f->running = false;
}

/* The first after `last` that waits no longer; NULL: there is none. */
fiber *released_after(const fiber *last)
{
    int begin = (int)(last - now.fibers) + 1;
    for (int i = 0; i < now.fiber_count; i++) {
        int at = begin + i < now.fiber_count ? begin + i : begin + i - now.fiber_count;
        fiber *f = &now.fibers[at];
        if (f->running && f->waits->generation != f->generation) {
            return f;
        }
    }
    return NULL;
}

/* From a fiber that waits, or that has no thread left, to the next one. */
void go_on(fiber *me)
{
    fiber *f = NULL;
    if (now.next < now.threads) {
        f = &now.fibers[now.fiber_count++];
        make_fiber(f);
    } else {
        f = released_after(me);
    }
    if (f != NULL) {
        now.current = f;
        td_emulate_switch(&me->sp, f->sp);
    } else if (now.live == 0) {
        td_emulate_switch(&me->sp, now.caller);
    } else {
        fail("a barrier that not all threads reach");
    }
}

void arrive(barrier *b, int wanted)
{
    if (++b->arrived >= wanted) {
        release(b);
        return;
    }
    fiber *me = now.current;
    me->waits = b;
    me->generation = b->generation;
    go_on(me);
    threadIdx = me->index;
}

/* Takes the next thread. */
void begin_thread(fiber *me)
{
    me->thread = now.next++;
    me->index = threadIdx = now.next_index;
    me->running = true;
    uint3 *next = &now.next_index;
    if (++next->x == blockDim.x) {
        next->x = 0;
        if (++next->y == blockDim.y) {
            next->y = 0;
            next->z++;
        }
    }
}

void run_threads()
{
    for (;;) {
        fiber *me = now.current;
        while (now.next < now.threads) {
            begin_thread(me);
            now.body(now.arguments);
            leave(me->thread);
            me->running = false;
        }
        go_on(me);
    }
}

void run_block()
{
    now.next = 0;
    now.next_index = { 0, 0, 0 };
    now.live = now.threads;
    now.all = { 0, 0 };
    for (int w = 0; w * WARP < now.threads; w++) {
        int lanes = now.threads - w * WARP;
        now.live_lanes[w] = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        now.warp[w] = { 0, 0 };
    }
    now.fiber_count = 1;
    now.current = &now.fibers[0];
    make_fiber(now.current);
    td_emulate_switch(&now.caller, now.current->sp);
}

struct grid {
    dim3 blocks, threads;
    void (*body)(void *arguments);
    alignas(16) char arguments[];
};

void run_grid(void *what)
{
    grid *g = (grid *)what;
    gridDim = g->blocks;
    blockDim = g->threads;
    now.threads = (int)(g->threads.x * g->threads.y * g->threads.z);
    now.body = g->body;
    now.arguments = g->arguments;
    for (unsigned z = 0; z < gridDim.z; z++) {
        for (unsigned y = 0; y < gridDim.y; y++) {
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = { x, y, z };
                run_block();
            }
        }
    }
}

} // namespace

void __syncthreads(void)
{
    arrive(&now.all, now.live);
}

unsigned td_emulate_lane(void)
{
    return (unsigned)now.current->thread % WARP;
}

void __syncwarp(unsigned mask)
{
    int warp = now.current->thread / WARP;
    arrive(&now.warp[warp], lanes_of(mask & now.live_lanes[warp]));
}

uint64_t td_emulate_shuffle(unsigned mask, uint64_t value, int lane)
{
    int thread = now.current->thread, first = thread / WARP * WARP;
    if ((mask >> thread % WARP & 1u) == 0) {
        fail("a shuffle by a lane that is not in its mask");
    }
    now.given[thread] = value;
    __syncwarp(mask);
    uint64_t found = now.given[first + lane < now.threads ? first + lane : thread];
    __syncwarp(mask);
    return found;
}

void td_emulate_grid(dim3 blocks, dim3 threads, cudaStream_t stream, void (*body)(void *arguments),
                     const void *arguments, size_t bytes)
{
    uint64_t count = (uint64_t)threads.x * threads.y * threads.z;
    if (count == 0 || count > MAX_THREADS || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
        blocks.y > 65535 || blocks.z > 65535) {
        td_emulate_error(cudaErrorInvalidValue);
        return;
    }
    grid *g = (grid *)malloc(sizeof *g + bytes);
    if (g == NULL) {
        td_emulate_error(cudaErrorMemoryAllocation);
        return;
    }
    g->blocks = blocks;
    g->threads = threads;
    g->body = body;
    memcpy(g->arguments, arguments, bytes);
    td_emulate_enqueue(stream, run_grid, g, sizeof *g + bytes);
    free(g);
}
