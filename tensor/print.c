/* td_print: the elements of a tensor as text. */
#include "tensor/backend.h"
#include "tensor/kernels/element.h"
#include "tensor/system/number.h"

#include <inttypes.h>
#include <math.h>

enum {
    ABBREVIATE_ABOVE = 1000, /* elements of the whole tensor */
    EDGE = 3,                /* what is shown of a long dimension, at each end */
    LINE_WIDTH = 100,        /* columns; longer rows are continued on the next line */
    NUMBER_BYTES = 40,
};

typedef struct printer {
    const td_tensor *t;
    FILE *out;
    bool abbreviate;
    bool scientific;
    int width;                                       /* columns of a number */
    double largest;                                  /* of all finite values shown, by magnitude */
    double smallest;                                 /* the same, without zeros */
    void (*visit)(struct printer *p, int64_t place); /* what happens to each number shown */
} printer;

static int format_number(const printer *p, int64_t place, char *text)
{
    const td_tensor *t = p->t;
    if (t->dtype == TD_I64) {
        return snprintf(text, NUMBER_BYTES, "%" PRId64, ((const int64_t *)td_ptr(t))[place]);
    }
    double value = td_load_element(td_ptr(t), t->dtype, place);
    if (!td_is_float(t->dtype)) {
        return td_snprintf(text, NUMBER_BYTES, "%.0f", value);
    }
    if (isnan(value)) { /* printf would show its sign */
        return snprintf(text, NUMBER_BYTES, "nan");
    }
    return td_snprintf(text, NUMBER_BYTES, p->scientific ? "%.4e" : "%.4f", value);
}

static void measure_range(printer *p, int64_t place)
{
    double magnitude = fabs(td_load_element(td_ptr(p->t), p->t->dtype, place));
    if (isfinite(magnitude) && magnitude > 0.0) {
        p->largest = fmax(p->largest, magnitude);
        p->smallest = fmin(p->smallest, magnitude);
    }
}

static void measure_width(printer *p, int64_t place)
{
    char text[NUMBER_BYTES];
    int width = format_number(p, place, text);
    p->width = width > p->width ? width : p->width;
}

static void print_number(printer *p, int64_t place)
{
    char text[NUMBER_BYTES];
    format_number(p, place, text);
    fprintf(p->out, "%*s", p->width, text);
}

/* Whether only the ends of a dimension are shown. */
static bool has_gap(const printer *p, int64_t size)
{
    return p->abbreviate && size > 2 * EDGE;
}

/* The index that is shown after i. */
static int64_t next_shown(const printer *p, int64_t i, int64_t size)
{
    return has_gap(p, size) && i + 1 == EDGE ? size - EDGE : i + 1;
}

/* Calls visit for every number that is shown. */
static void walk(printer *p, int dim, int64_t place)
{
    if (dim == p->t->ndim) {
        p->visit(p, place);
        return;
    }
    int64_t size = p->t->shape[dim];
    for (int64_t i = 0; i < size; i = next_shown(p, i, size)) {
        walk(p, dim + 1, place + i * p->t->stride[dim]);
    }
}

/* Ends an entry of a dimension, so that the next one can follow: numbers stand side by side as far
 * as the line goes, rows below each other, matrices with an empty line between. */
static void print_separator(const printer *p, int dim, int64_t *column)
{
    int inner = p->t->ndim - 1 - dim; /* dimensions of an entry */
    fputc(',', p->out);
    if (inner == 0 && dim + 1 + (*column + 1) * (p->width + 2) <= LINE_WIDTH) {
        fputc(' ', p->out);
        (*column)++;
        return;
    }
    for (int i = 0; i < (inner > 0 ? inner : 1); i++) {
        fputc('\n', p->out);
    }
    fprintf(p->out, "%*s", dim + 1, "");
    *column = 1;
}

static void print_dimension(printer *p, int dim, int64_t place)
{
    if (dim == p->t->ndim) {
        print_number(p, place);
        return;
    }
    int64_t size = p->t->shape[dim];
    int64_t column = 1;
    fputc('[', p->out);
    for (int64_t i = 0; i < size; i = next_shown(p, i, size)) {
        if (i > 0) {
            print_separator(p, dim, &column);
        }
        if (has_gap(p, size) && i == size - EDGE) {
            fprintf(p->out, "...");
            print_separator(p, dim, &column);
        }
        print_dimension(p, dim + 1, place + i * p->t->stride[dim]);
    }
    fputc(']', p->out);
}

/* A copy that the host can read, to be freed; t itself where it can. */
static const td_tensor *on_host(const td_tensor *t)
{
    if (td_backend_of(td_device_of(t)) == NULL) {
        return t;
    }
    const td_tensor *copy = td_clone_as(t, t->dtype, TD_CPU);
    TD_REQUIRE(copy != NULL, TD_NOWHERE, "td_print: %s", td_last_error());
    return copy;
}

void td_print_at(const td_tensor *t, FILE *out, td_site at)
{
    td_check_alive(t, at);
    const td_tensor *shown = on_host(t);
    printer p = { .t = shown, .out = out, .smallest = INFINITY };
    p.abbreviate = td_numel(t) > ABBREVIATE_ABOVE;
    if (td_numel(t) == 0) {
        fputs("[]", out);
    } else {
        p.visit = measure_range;
        walk(&p, 0, 0);
        /* Four decimals would show too little of small numbers, and too much of large ones. */
        p.scientific = p.largest >= 1e6 || (p.largest > 0.0 && p.smallest < 1e-4);
        p.visit = measure_width;
        walk(&p, 0, 0);
        print_dimension(&p, 0, 0);
    }
    fprintf(out, "\n%s\n", td_describe(t));
    if (shown != t) {
        td_free((td_tensor *)(uintptr_t)shown);
    }
}
