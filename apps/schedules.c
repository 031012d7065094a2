/* Lesson 21: the learning rate in the course of a run: warm-up, cosine, one cycle.
 *
 *     schedules                    draws the schedules as text, and trains with each
 *     schedules schedules.svg      draws them as SVG, too
 *
 * docs/tutorial/21-schedules.md explains the ideas. */
#include <tandem.h>

#include <math.h>

enum { STEPS = 300, COLUMNS = 60, HEIGHT = 10, WEIGHTS = 20, BATCH = 8 };

static const char *drawing; /* the option */
static const td_option options[] = { { "DRAWING", .text = &drawing }, { 0 } };

static const struct {
    const char *name, *colour;
    td_schedule schedule;
} lines[] = {
    { "constant 0.1", "#888888", { .base_lr = 0.1 } },
    { "constant 0.005", "#cc79a7", { .base_lr = 0.005 } },
    { "steps: a fifth every 100",
      "#56b4e9",
      { .kind = TD_SCHEDULE_STEP, .base_lr = 0.1, .step_size = 100, .gamma = 0.2 } },
    { "cosine", "#0072b2", { .kind = TD_SCHEDULE_COSINE, .base_lr = 0.1, .total = STEPS } },
    { "warm-up of 30, then cosine",
      "#009e73",
      { .kind = TD_SCHEDULE_COSINE,
        .base_lr = 0.1,
        .total = STEPS,
        .warmup = 30,
        .warmup_factor = 0.01,
        .after_warmup = true } },
    { "one cycle", "#d55e00", { .kind = TD_SCHEDULE_ONE_CYCLE, .base_lr = 0.1, .total = STEPS } },
};
enum { LINES = sizeof lines / sizeof *lines };

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

static double rate(int line, int step)
{
    return td_schedule_lr(&lines[line].schedule, step);
}

static void draw_text(int line)
{
    printf("%s\n", lines[line].name);
    for (int row = HEIGHT; row > 0; row--) {
        printf("%6.2f |", 0.1 * row / HEIGHT);
        for (int column = 0; column < COLUMNS; column++) {
            int step = column * STEPS / COLUMNS;
            printf("%c", rate(line, step) > 0.1 * (row - 0.5) / HEIGHT ? '#' : ' ');
        }
        printf("\n");
    }
    printf("   step 0%*d\n\n", COLUMNS, STEPS);
}

/* SVG is text: a polyline for each schedule. A step is 2 points wide, a rate of 0.1 200 high. */
static void draw_svg(const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        td_fail(TD_E_IO, "%s cannot be written", path);
        td_die();
    }
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"270\" "
                 "font-family=\"sans-serif\" font-size=\"13\">\n"
                 "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n");
    for (int line = 0; line < LINES; line++) {
        fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"3\" points=\"",
                lines[line].colour);
        for (int step = 0; step < STEPS; step++) {
            fprintf(out, "%d,%.1f ", 50 + 2 * step, 230 - 2000 * rate(line, step));
        }
        fprintf(out, "\"/>\n<text x=\"665\" y=\"%d\" fill=\"%s\">%s</text>\n", 40 + 24 * line,
                lines[line].colour, lines[line].name);
    }
    for (int tenth = 0; tenth <= 10; tenth += 5) {
        fprintf(out, "<text x=\"10\" y=\"%d\">%.2f</text>\n", 234 - 20 * tenth, 0.01 * tenth);
    }
    for (int step = 0; step < STEPS; step += 50) {
        fprintf(out, "<text x=\"%d\" y=\"252\">%d</text>\n", 46 + 2 * step, step);
    }
    fprintf(out, "<text x=\"665\" y=\"252\">step</text>\n</svg>\n");
    must(fclose(out) == 0);
}

/* How far the weights are from those that the data were made with. */
static double distance(const td_tensor *weights, const td_tensor *truth)
{
    double sum = 0, w[WEIGHTS], t[WEIGHTS];
    td_read(weights, w, TD_F64);
    td_read(truth, t, TD_F64);
    for (int i = 0; i < WEIGHTS; i++) {
        sum += (w[i] - t[i]) * (w[i] - t[i]);
    }
    return sqrt(sum);
}

/* A linear model learns 20 weights. Each step has eight new samples, and noise is in their targets.
 */
static void train(int line)
{
    td_generator g;
    td_generator_seed(&g, 1);
    td_manual_seed(0);
    td_tensor *x = td_new(TD_SHAPE(BATCH, WEIGHTS), TD_F32, TD_CPU);
    td_tensor *noise = td_new(TD_SHAPE(BATCH, 1), TD_F32, TD_CPU);
    td_tensor *truth = td_full(TD_SHAPE(1, WEIGHTS), 1, TD_F32, TD_CPU);
    td_module *net = td_nn_linear(WEIGHTS, 1, .no_bias = true);
    must(x != NULL && noise != NULL && truth != NULL && net != NULL);
    td_params *params = td_parameters(net);
    td_optim *optim = td_sgd(params, .lr = 0.1);
    must(optim != NULL);
    printf("%-28s", lines[line].name);
    for (int step = 0; step < STEPS; step++) {
        td_normal_(x, 0, 1, &g);
        td_normal_(noise, 0, 1, &g);
        td_optim_set_lr(optim, rate(line, step)); /* all that a schedule does */
        TD_STEP {
            td_tensor *y = td_add(td_linear(x, truth, NULL), noise);
            td_zero_grad(optim);
            td_backward(td_mse_loss(td_forward(net, x), y));
            td_optim_step(optim);
        }
        if (step == 29 || step == 99 || step == STEPS - 1) {
            printf(" %8.2f", distance(td_params_get(params, 0)->tensor, truth));
        }
    }
    printf("\n");
    td_optim_free(optim);
    td_module_free(net);
    td_free(truth);
    td_free(noise);
    td_free(x);
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, "[DRAWING.svg]", options);
    for (int line = 0; line < LINES; line++) {
        draw_text(line);
    }
    if (drawing != NULL) {
        draw_svg(drawing);
    }
    printf("%-28s %8d %8d %8d\n", "distance after step", 30, 100, STEPS);
    for (int line = 0; line < LINES; line++) {
        train(line);
    }
    return td_finish();
}
