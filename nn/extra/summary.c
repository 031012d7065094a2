/* A model as a table: what each layer gives, holds and costs. */
#include "nn/internal.h"
#include "tensor/system/number.h"

#include <stdlib.h>
#include <string.h>

typedef struct summary_row {
    td_module *module;
    char name[96];
    char kind[96];
    td_shape out;
    bool seen;
    int64_t parameters, multiply_adds;
} summary_row;

typedef struct summary {
    summary_row *rows;
    int count;
} summary;

/* ---- collecting ---- */

/* What a module holds itself; what its children hold is in their rows. */
static int64_t own_parameters(const td_module *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        count += m->tensors[i].buffer ? 0 : td_numel(m->tensors[i].tensor);
    }
    return count;
}

/* Modules that only hold others, and compute nothing else, have no row of their own. */
static void add_row(summary *s, td_module *m, const char *path)
{
    if (m->child_count > 0 && m->tensor_count == 0 && m->type->multiply_adds == NULL) {
        return;
    }
    summary_row *row = &s->rows[s->count++];
    row->module = m;
    row->parameters = own_parameters(m);
    snprintf(row->name, sizeof row->name, "%s", *path == '\0' ? "-" : path);
    char text[80] = "";
    if (m->type->describe != NULL) {
        m->type->describe(m, text, sizeof text);
    }
    snprintf(row->kind, sizeof row->kind, *text == '\0' ? "%.40s" : "%.40s(%s)", m->type->name,
             text);
}

static td_tensor *note_run(const td_around_rest *rest, td_tensor *x, void *user)
{
    summary *s = user;
    td_module *m = rest->m;
    td_tensor *y = td_run_rest(rest, x);
    for (int i = 0; i < s->count; i++) {
        summary_row *row = &s->rows[i];
        if (row->module == m) {
            row->seen = true;
            row->out = td_shape_of(y);
            if (m->type->multiply_adds != NULL) {
                row->multiply_adds += m->type->multiply_adds(m, td_shape_of(x), row->out);
            }
        }
    }
    return y;
}

/* One forward on zeros; whatever is open (a step, gradients) stays as it was. */
static td_status run_once(td_module *net, td_shape input, summary *s, td_site at)
{
    td_dtype dtype = td_takes_indices(net) ? TD_I64 : net->dtype;
    td_tensor *x = td_zeros(input, dtype, net->device);
    if (x == NULL) {
        return td_fail_context(TD_E_NOMEM, "td_summary's input");
    }
    td_status status = TD_OK;
    for (td_module *m = net; m != NULL && status == TD_OK; m = td_module_next(net, m)) {
        status = td_module_surround(m, &(td_around){ .run = note_run, .user = s });
    }
    bool own_step = !td_in_step();
    if (own_step) {
        td_step_begin();
    }
    td_no_grad_begin();
    td_forward_at(net, x, at);
    td_no_grad_end();
    if (own_step) {
        td_step_end();
    }
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        td_module_unsurround(m, note_run, s);
    }
    td_free(x);
    return status;
}

/* ---- printing ---- */

/* 11181642 -> "11,181,642". */
static const char *with_commas(int64_t value, char text[32])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            text[at++] = ',';
        }
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

static int widest(int width, const char *text)
{
    int length = (int)strlen(text);
    return length > width ? length : width;
}

static void print_rule(FILE *out, int width)
{
    for (int i = 0; i < width; i++) {
        fputc('-', out);
    }
    fputc('\n', out);
}

static void print_table(const summary *s, FILE *out)
{
    static const char *const head[] = { "layer", "type", "output" };
    int name = (int)strlen(head[0]), kind = (int)strlen(head[1]), shape = (int)strlen(head[2]);
    for (int i = 0; i < s->count; i++) {
        name = widest(name, s->rows[i].name);
        kind = widest(kind, s->rows[i].kind);
        shape = widest(shape, s->rows[i].seen ? td_describe_shape(s->rows[i].out) : "not run");
    }
    fprintf(out, "%-*s  %-*s  %-*s  %12s  %16s\n", name, head[0], kind, head[1], shape, head[2],
            "parameters", "multiply-adds");
    print_rule(out, name + kind + shape + 36);
    char parameters[32], multiply_adds[32];
    for (int i = 0; i < s->count; i++) {
        const summary_row *row = &s->rows[i];
        fprintf(out, "%-*s  %-*s  %-*s  %12s  %16s\n", name, row->name, kind, row->kind, shape,
                row->seen ? td_describe_shape(row->out) : "not run",
                with_commas(row->parameters, parameters),
                with_commas(row->multiply_adds, multiply_adds));
    }
    print_rule(out, name + kind + shape + 36);
}

static void print_totals(td_module *m, const summary *s, FILE *out)
{
    int64_t multiply_adds = 0;
    for (int i = 0; i < s->count; i++) {
        multiply_adds += s->rows[i].multiply_adds;
    }
    char text[32];
    int64_t parameters = td_parameter_count(m); /* shared ones once */
    fprintf(out, "parameters: %s", with_commas(parameters, text));
    td_fprintf(out, " (%.2f MiB in %s)\n",
               (double)parameters * (double)td_dtype_size(m->dtype) / 1048576.0,
               td_dtype_name(m->dtype));
    fprintf(out, "multiply-adds of a forward: %s\n", with_commas(multiply_adds, text));
}

td_status td_summary_at(td_module *net, td_shape input, FILE *out, td_site at)
{
    int modules = 0;
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        modules++;
    }
    summary s = { .rows = calloc((size_t)modules + 1, sizeof(summary_row)) };
    TD_CHECK(s.rows != NULL, TD_E_NOMEM, "no memory for the summary of %d modules", modules);
    td_eval_for_now(net);
    for (td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        add_row(&s, m, td_module_path(net, m));
    }
    td_status status = run_once(net, input, &s, at);
    td_give_modes_back(net);
    if (status == TD_OK) {
        print_table(&s, out);
        print_totals(net, &s, out);
    }
    free(s.rows);
    return status;
}
