/* The emulated GPU's blocks: their threads are fibers, run one at a time. A fiber takes thread
 * after thread as long as none waits; only threads that meet a barrier cost a stack of their own.
 *
 * A GPU promises no order of blocks, nor of threads between barriers: each grid and each block
 * draws its own (td_emulate_draw), and a kernel's results must not tell.
 *
 * A barrier that some threads never reach, which hangs or corrupts on a GPU, ends the program; so
 * do threads that wait at different ones, and those that have returned after they met others. */
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
    int thread, passed; /* passed: barriers of the block that its thread has met */
    uint3 index;        /* its threadIdx */
    barrier *waits;     /* for its generation to change */
    unsigned generation;
    bool running; /* has a thread that has begun */
};

/* Which of the threads that a barrier has released goes on first. */
enum turns { THE_NEXT, THE_FIRST, THE_LAST, TURNS };

struct block {
    int threads, begun;
    bool backwards; /* the last thread begins first */
    turns turn;
    int live;
    int line, passed; /* where the threads wait for each other, and how many barriers before */
    bool met;         /* a thread has returned that has met others at a barrier */
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
    now.met = now.met || now.current->passed > 0;
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
    int begin = now.turn == THE_NEXT ? (int)(last - now.fibers) + 1 : 0;
    for (int i = 0; i < now.fiber_count; i++) {
        int at = begin + i < now.fiber_count ? begin + i : begin + i - now.fiber_count;
        at = now.turn == THE_LAST ? now.fiber_count - 1 - i : at;
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
    if (now.begun < now.threads) {
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
    int thread = now.backwards ? now.threads - 1 - now.begun : now.begun;
    now.begun++;
    unsigned rest = (unsigned)thread, x = rest, y = 0;
    if (blockDim.x < (unsigned)now.threads) {
        x = rest % blockDim.x;
        rest /= blockDim.x;
        y = rest % blockDim.y;
        rest /= blockDim.y;
    } else {
        rest = 0;
    }
    me->thread = thread;
    me->passed = 0;
    me->index = threadIdx = { x, y, rest };
    me->running = true;
}

void run_threads()
{
    for (;;) {
        fiber *me = now.current;
        while (now.begun < now.threads) {
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
    now.begun = 0;
    now.backwards = td_emulate_draw(2) == 1;
    now.turn = (turns)td_emulate_draw(TURNS);
    now.live = now.threads;
    now.met = false;
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

/* The greatest that divides both. */
uint64_t divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void run_grid(void *what)
{
    grid *g = (grid *)what;
    gridDim = g->blocks;
    blockDim = g->threads;
    now.threads = (int)(g->threads.x * g->threads.y * g->threads.z);
    now.body = g->body;
    now.arguments = g->arguments;
    uint64_t count = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    uint64_t step = 1 + td_emulate_draw((unsigned)count), at = td_emulate_draw((unsigned)count);
    while (divisor(step, count) != 1) { /* a step that comes to all of them */
        step = step % count + 1;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t row = at / gridDim.x;
        blockIdx = { (unsigned)(at % gridDim.x), (unsigned)(row % gridDim.y),
                     (unsigned)(row / gridDim.y) };
        run_block();
        at = (at + step) % count;
    }
}

} // namespace

extern "C" void td_emulate_crashed(int)
{
    fail("what runs on a stream has crashed, the last kernel perhaps");
}

void td_emulate_syncthreads(int line)
{
    fiber *me = now.current;
    if (now.met) {
        fail("a barrier behind one after which threads have returned");
    }
    if (now.all.arrived == 0) {
        now.line = line;
        now.passed = me->passed;
    }
    if (line != now.line || me->passed != now.passed) {
        fail("threads of a block wait at different barriers");
    }
    me->passed++;
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
