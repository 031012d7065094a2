/* Records and prints every block of a step's memory. */
#include "tensor/observe/memory_plan.h"

#include "tensor/hooks.h"
#include "tensor/system/number.h"
#include "tensor/storage.h"
#include "tensor/observe/watch.h"
#include "tensor/system/list.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One step: its kernels and its blocks. */
typedef struct recording {
    td_memory_op *ops;
    td_memory_block *blocks;
    int op_count, block_count;
    bool backward;
    size_t in_use, peak; /* bytes */
    int peak_op;
} recording;

static struct {
    bool on;
    pthread_t owner;
    const void *arena; /* the first that this thread used: its device's */
    recording running, kept;
    bool inside; /* of a kernel */
} plan;

static void make_room(void *items, int count, size_t size)
{
    TD_REQUIRE(td_grow(items, count, size), TD_NOWHERE,
               "no memory to record the plan of a step's memory");
}

/* ---- watching ---- */

enum { STILL_TAKEN = -1 };

static bool is_mine(void)
{
    return pthread_equal(plan.owner, pthread_self()) != 0 && td_in_step();
}

static void op_begins(const td_watched_call *call, void *user)
{
    (void)user;
    if (!is_mine()) {
        return;
    }
    recording *r = &plan.running;
    make_room(&r->ops, r->op_count, sizeof *r->ops);
    td_memory_op *op = &r->ops[r->op_count++];
    *op = (td_memory_op){ .kernel = call->kernel, .backward = call->backward };
    snprintf(op->module, sizeof op->module, "%s", call->module != NULL ? call->module : "");
    r->backward |= call->backward;
    plan.inside = true;
}

static void op_returned(const td_watched_call *call, void *user)
{
    (void)call, (void)user;
    if (is_mine()) {
        plan.inside = false;
    }
}

/* A block is made for the kernel that runs, or for the next one. */
static void block_taken(const void *arena, td_device device, size_t offset, size_t bytes,
                        void *user)
{
    (void)device, (void)user;
    if (!is_mine() || (plan.arena != NULL && plan.arena != arena)) {
        return;
    }
    plan.arena = arena;
    recording *r = &plan.running;
    make_room(&r->blocks, r->block_count, sizeof *r->blocks);
    td_memory_block *b = &r->blocks[r->block_count++];
    *b = (td_memory_block){ offset, bytes, r->op_count - (plan.inside ? 1 : 0), STILL_TAKEN,
                            plan.inside ? TD_BLOCK_SCRATCH : TD_BLOCK_FORWARD };
    r->in_use += bytes;
    if (r->in_use > r->peak) {
        r->peak = r->in_use;
        r->peak_op = b->from;
    }
}

static void block_given(const void *arena, size_t offset, void *user)
{
    (void)user;
    if (!is_mine() || plan.arena != arena) {
        return;
    }
    recording *r = &plan.running;
    for (int i = r->block_count; i-- > 0;) {
        td_memory_block *b = &r->blocks[i];
        if (b->offset == offset && b->to == STILL_TAKEN) {
            b->to = r->op_count - 1 > b->from ? r->op_count - 1 : b->from;
            r->in_use -= b->bytes;
            return;
        }
    }
}

/* What was not given back lives to the end. */
static void memory_plan_finish(recording *r)
{
    int last = r->op_count - 1;
    r->peak_op = r->peak_op < last ? r->peak_op : last;
    for (int i = 0; i < r->block_count; i++) {
        td_memory_block *b = &r->blocks[i];
        b->from = b->from < last ? b->from : last;
        b->to = b->to == STILL_TAKEN || b->to > last ? last : b->to;
        if (b->kind != TD_BLOCK_SCRATCH && r->ops[b->from].backward) {
            b->kind = TD_BLOCK_BACKWARD;
        }
    }
}

static void memory_plan_step_ended(double begin, double end, void *user)
{
    (void)begin, (void)end, (void)user;
    if (!pthread_equal(plan.owner, pthread_self())) {
        return;
    }
    plan.inside = false; /* a fatal error may have left a kernel in the middle */
    recording *r = &plan.running;
    if (r->op_count > 0 && (r->backward || !plan.kept.backward)) {
        memory_plan_finish(r);
        recording old = plan.kept;
        plan.kept = plan.running;
        plan.running = old;
    }
    plan.running = (recording){ .ops = r->ops, .blocks = r->blocks };
}

static td_watcher watcher = { .begins = op_begins, .returned = op_returned };
static td_step_observer observer = { .taken = block_taken,
                                     .given = block_given,
                                     .ended = memory_plan_step_ended };

/* ---- on and off ---- */

static void memory_plan_clear(recording *r)
{
    free(r->ops);
    free(r->blocks);
    *r = (recording){ .backward = false };
}

void td_memory_plan_start(void)
{
    TD_REQUIRE(!td_in_step(), TD_HERE, "td_memory_plan_start inside a step: call it before");
    td_memory_plan_stop();
    memory_plan_clear(&plan.running);
    memory_plan_clear(&plan.kept);
    plan.owner = pthread_self();
    plan.arena = NULL;
    plan.inside = false;
    plan.on = true;
    td_watch(&watcher);
    td_observe_steps(&observer);
}

void td_memory_plan_stop(void)
{
    if (plan.on) {
        td_unwatch(&watcher);
        td_ignore_steps(&observer);
        plan.on = false;
    }
}

/* ---- results ---- */

td_memory_plan td_memory_plan_get(void)
{
    const recording *r = &plan.kept;
    td_memory_plan result = { .blocks = r->blocks,
                              .block_count = r->block_count,
                              .ops = r->ops,
                              .op_count = r->op_count,
                              .peak = r->peak,
                              .peak_op = r->peak_op };
    for (int i = 0; i < r->block_count; i++) {
        size_t end = r->blocks[i].offset + r->blocks[i].bytes;
        result.extent = end > result.extent ? end : result.extent;
    }
    return result;
}

static const char *kind_name(td_block_kind kind)
{
    static const char *const names[] = { "forward", "backward", "scratch" };
    return names[kind];
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void print_block(FILE *out, const td_memory_plan *p, const td_memory_block *b)
{
    const td_memory_op *op = &p->ops[b->from];
    td_fprintf(out, "%10.3f %10.3f %6d %6d  %-8s  %-19s %s\n", mib(b->bytes), mib(b->offset),
               b->from, b->to, kind_name(b->kind), op->kernel,
               *op->module != '\0' ? op->module : "-");
}

static void print_head(FILE *out)
{
    fprintf(out, "%10s %10s %6s %6s  %-8s  %-19s %s\n", "MiB", "at MiB", "from", "to", "made in",
            "kernel", "module");
}

static int memory_plan_larger_first(const void *a, const void *b)
{
    const td_memory_block *left = a, *right = b;
    return (left->bytes < right->bytes) - (left->bytes > right->bytes);
}

/* What lives at the peak, the largest first. */
static void print_peak(FILE *out, const td_memory_plan *p, size_t least)
{
    td_memory_block *alive = malloc((size_t)p->block_count * sizeof *alive);
    int count = 0;
    for (int i = 0; alive != NULL && i < p->block_count; i++) {
        const td_memory_block *b = &p->blocks[i];
        if (b->from <= p->peak_op && p->peak_op <= b->to) {
            alive[count++] = *b;
        }
    }
    if (count > 0) {
        qsort(alive, (size_t)count, sizeof *alive, memory_plan_larger_first);
    }
    for (int i = 0; i < count && alive[i].bytes >= least; i++) {
        print_block(out, p, &alive[i]);
    }
    free(alive);
}

void td_memory_plan_print(FILE *out, size_t least)
{
    td_memory_plan p = td_memory_plan_get();
    if (p.op_count == 0) {
        fputs("\nstep memory: no step was recorded\n", out);
        return;
    }
    const td_memory_op *op = &p.ops[p.peak_op];
    td_fprintf(
        out,
        "\nstep memory: peak %.1f MiB, in kernel %d of %d (%s%s%s, %s); with holes %.1f MiB\n"
        "alive then:\n",
        mib(p.peak), p.peak_op, p.op_count, op->kernel, *op->module != '\0' ? " of " : "",
        op->module, op->backward ? "backward" : "forward", mib(p.extent));
    print_head(out);
    print_peak(out, &p, least);
    size_t rest = 0;
    int small = 0;
    fputs("all blocks of the step:\n", out);
    print_head(out);
    for (int i = 0; i < p.block_count; i++) {
        if (p.blocks[i].bytes >= least) {
            print_block(out, &p, &p.blocks[i]);
        } else {
            rest += p.blocks[i].bytes;
            small++;
        }
    }
    td_fprintf(out, "and %d of less than %.3f MiB, %.3f MiB together\n", small, mib(least),
               mib(rest));
}

/* ---- the picture ---- */

enum { WIDTH = 1000, HEIGHT = 480, LEFT = 60, TOP = 44 };

typedef struct canvas {
    FILE *out;
    double x_scale, y_scale; /* per kernel, per byte */
} canvas;

static void draw_block(const canvas *c, const td_memory_plan *p, const td_memory_block *b)
{
    static const char *const colors[] = { "#7fa8d9", "#e8a15c", "#b8b8b8" };
    const td_memory_op *op = &p->ops[b->from];
    double top = TOP + HEIGHT - (double)(b->offset + b->bytes) * c->y_scale;
    td_fprintf(c->out,
               "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
               "stroke=\"#fff\" stroke-width=\"0.3\"><title>%s %s: %.2f MiB at %.2f, kernels %d to "
               "%d</title></rect>\n",
               LEFT + b->from * c->x_scale, top, (b->to - b->from + 1) * c->x_scale,
               (double)b->bytes * c->y_scale, colors[b->kind], op->kernel, op->module,
               mib(b->bytes), mib(b->offset), b->from, b->to);
}

static void draw_grid(const canvas *c, const td_memory_plan *p)
{
    size_t step = (size_t)1 << 20;
    while (p->extent / step > 8) {
        step *= 2;
    }
    for (size_t at = 0; at <= p->extent; at += step) {
        double y = TOP + HEIGHT - (double)at * c->y_scale;
        td_fprintf(c->out,
                   "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ccc\"/>"
                   "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f MiB</text>\n",
                   LEFT, LEFT + WIDTH, y, y, LEFT - 4, y + 4, mib(at));
    }
}

static void draw_peak(const canvas *c, const td_memory_plan *p)
{
    double peak = LEFT + (p->peak_op + 0.5) * c->x_scale;
    td_fprintf(c->out,
               "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#a00\" "
               "stroke-dasharray=\"4\"/>\n<text x=\"%d\" y=\"%d\">kernels of one step, from 0 to %d"
               "</text>\n",
               peak, peak, TOP, TOP + HEIGHT, LEFT, TOP + HEIGHT + 16, p->op_count - 1);
}

td_status td_memory_plan_draw(const char *path)
{
    td_memory_plan p = td_memory_plan_get();
    FILE *out = fopen(path, "w");
    TD_CHECK(out != NULL, TD_E_IO, "the picture '%s' cannot be written: %s", path, strerror(errno));
    canvas c = { out, (double)WIDTH / (p.op_count > 0 ? p.op_count : 1),
                 (double)HEIGHT / (p.extent > 0 ? (double)p.extent : 1.0) };
    td_fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" "
        "fill=\"white\"/>\n<text x=\"%d\" y=\"18\" font-size=\"14\">Step memory: peak %.1f MiB "
        "at the dashed line; blue: made in forward, orange: in backward, grey: scratch</text>\n",
        LEFT + WIDTH + 20, TOP + HEIGHT + 26, LEFT, mib(p.peak));
    draw_grid(&c, &p);
    for (int i = 0; i < p.block_count; i++) {
        draw_block(&c, &p, &p.blocks[i]);
    }
    draw_peak(&c, &p);
    fputs("</svg>\n", out);
    bool bad = ferror(out) != 0;
    bad |= fclose(out) != 0;
    TD_CHECK(!bad, TD_E_IO, "the picture '%s' could not be written: %s", path, strerror(errno));
    return TD_OK;
}
