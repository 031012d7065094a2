/* Ten classes of 32x32 pictures drawn from a seed: a shape in a random colour, place, size and
 * slight turn, on a shaded ground with stray dots and noise. Arithmetic is plain float (no
 * transcendental functions), so a seed gives the same bytes everywhere. */
#include "data/images_memory.h"
#include "tensor/extend.h"

#include <math.h>

enum { CLASSES = 10, SIDE = TD_PICTURE_SIDE, PLANE = SIDE * SIDE, DOTS = 3, NOISE = 24 };

static const char *const class_names[CLASSES] = {
    "disc",  "ring",    "square",          "frame",         "triangle",
    "cross", "diamond", "horizontal bars", "vertical bars", "checkerboard",
};

/* ---- draws: the words of consecutive Philox blocks of a sample ---- */

typedef struct draws {
    td_philox_key key;
    uint64_t sample, block;
    uint32_t word[4];
    int used; /* words of this block */
} draws;

static uint32_t draw_word(draws *d)
{
    if (d->used == 4) {
        td_philox(d->key, d->sample, d->block++, d->word);
        d->used = 0;
    }
    return d->word[d->used++];
}

/* [low, high) */
static float draw_between(draws *d, float low, float high)
{
    float unit = (float)(draw_word(d) >> 8) * 0x1p-24f;
    return low + unit * (high - low);
}

/* ---- shapes: distance in pixels to the edge, negative inside, for a shape of radius r ---- */

static float box(float x, float y, float r)
{
    return fmaxf(fabsf(x), fabsf(y)) - r;
}

/* Bars across one axis: as wide as the gaps between them, three in a shape. */
static float bars(float x, float r)
{
    float period = 0.8f * r;
    float place = x / period + 0.5f; /* a bar in the middle */
    return (fabsf(place - floorf(place) - 0.5f) - 0.25f) * period;
}

static float shape_distance(int class, float x, float y, float r)
{
    float radius = sqrtf(x * x + y * y);
    switch (class) {
    case 0: /* disc */
        return radius - r;
    case 1: /* ring */
        return fabsf(radius - 0.75f * r) - 0.25f * r;
    case 2: /* square */
        return box(x, y, 0.85f * r);
    case 3: /* frame */
        return fabsf(box(x, y, 0.7f * r)) - 0.2f * r;
    case 4: /* triangle, point upwards */
        return fmaxf(y - 0.5f * r, 0.866f * fabsf(x) - 0.5f * y - 0.5f * r);
    case 5: /* cross */
        return fminf(fmaxf(fabsf(x) - r, fabsf(y) - 0.3f * r),
                     fmaxf(fabsf(y) - r, fabsf(x) - 0.3f * r));
    case 6: /* diamond */
        return 0.7071f * (fabsf(x) + fabsf(y) - r);
    case 7:
        return fmaxf(box(x, y, r), bars(y, r));
    case 8:
        return fmaxf(box(x, y, r), bars(x, r));
    default: { /* checkerboard: where exactly one set of bars is */
        float across = bars(x, r), along = bars(y, r);
        float one = fmaxf(fminf(across, along), -fmaxf(across, along));
        return fmaxf(box(x, y, r), one);
    }
    }
}

/* ---- a picture ---- */

typedef struct scene {
    int class;
    float x, y, r;      /* centre and radius */
    float cosine, sine; /* of the turn */
    float ground[3];    /* colours, 0..255 */
    float slope[3][2];  /* shading of the ground, per pixel */
    float ink[3];       /* the shape's */
    float dot[DOTS][3]; /* stray dots: x, y, radius */
    float dot_ink[DOTS][3];
} scene;

static scene draw_scene(draws *d, int class)
{
    scene s = { .class = class };
    s.r = draw_between(d, 6, 12);
    s.x = draw_between(d, s.r - 1, SIDE - s.r);
    s.y = draw_between(d, s.r - 1, SIDE - s.r);
    float t = draw_between(d, -0.13f, 0.13f); /* tangent of half the angle: up to 15 degrees */
    s.cosine = (1 - t * t) / (1 + t * t);
    s.sine = 2 * t / (1 + t * t);
    for (int c = 0; c < 3; c++) {
        s.ground[c] = draw_between(d, 0, 256);
        s.slope[c][0] = draw_between(d, -2, 2);
        s.slope[c][1] = draw_between(d, -2, 2);
        /* Between 70 and 186 steps round the circle of bytes: never close to the ground. */
        s.ink[c] = s.ground[c] + draw_between(d, 70, 186);
        s.ink[c] -= s.ink[c] >= 256 ? 256 : 0;
    }
    for (int i = 0; i < DOTS; i++) {
        s.dot[i][0] = draw_between(d, 0, SIDE);
        s.dot[i][1] = draw_between(d, 0, SIDE);
        s.dot[i][2] = draw_between(d, 1, 3);
        for (int c = 0; c < 3; c++) {
            s.dot_ink[i][c] = draw_between(d, 0, 256);
        }
    }
    return s;
}

/* How much of a pixel lies inside an edge at this distance. */
static float coverage(float distance)
{
    return fminf(fmaxf(0.5f - distance, 0), 1);
}

static void paint_pixel(const scene *s, int row, int column, float colour[3])
{
    float dx = (float)column + 0.5f - s->x, dy = (float)row + 0.5f - s->y;
    float turned_x = s->cosine * dx + s->sine * dy, turned_y = s->cosine * dy - s->sine * dx;
    float shape = coverage(shape_distance(s->class, turned_x, turned_y, s->r));
    for (int c = 0; c < 3; c++) {
        float ground = s->ground[c] + s->slope[c][0] * (float)(column - SIDE / 2) +
                       s->slope[c][1] * (float)(row - SIDE / 2);
        colour[c] = ground + shape * (s->ink[c] - ground);
    }
    for (int i = 0; i < DOTS; i++) {
        float x = (float)column + 0.5f - s->dot[i][0], y = (float)row + 0.5f - s->dot[i][1];
        float dot = coverage(sqrtf(x * x + y * y) - s->dot[i][2]);
        for (int c = 0; c < 3; c++) {
            colour[c] += dot * (s->dot_ink[i][c] - colour[c]);
        }
    }
}

static void paint(const scene *s, draws *d, uint8_t *pixels)
{
    for (int row = 0; row < SIDE; row++) {
        for (int column = 0; column < SIDE; column++) {
            float colour[3];
            paint_pixel(s, row, column, colour);
            uint32_t noise = draw_word(d);
            for (int c = 0; c < 3; c++, noise >>= 8) {
                float value = colour[c] + ((float)(noise & 255) - 127.5f) * (NOISE / 127.5f);
                pixels[c * PLANE + row * SIDE + column] =
                    (uint8_t)fminf(fmaxf(value + 0.5f, 0), 255);
            }
        }
    }
}

td_status td_synthetic_images(int64_t length, uint64_t seed, td_dataset **dataset)
{
    *dataset = NULL;
    TD_CHECK(length >= 1 && length <= 10000000, TD_E_ARG,
             "%lld synthetic images; give 1 to 10000000", (long long)length);
    td_images_memory *images = td_images_memory_new("synthetic", length);
    if (images == NULL) {
        return TD_E_NOMEM;
    }
    images->base.classes = CLASSES;
    images->base.class_names = class_names;
    images->base.synthetic = true;
    for (int64_t i = 0; i < length; i++) {
        draws d = { .key = { seed, 0x736861706573 /* "shapes" in ASCII */ },
                    .sample = (uint64_t)i,
                    .used = 4 };
        int class = (int)(i % CLASSES); /* as many of each, also in the set's beginning */
        scene s = draw_scene(&d, class);
        paint(&s, &d, images->pixels + i * TD_PICTURE_BYTES);
        images->labels[i] = (uint8_t) class;
    }
    *dataset = &images->base;
    return TD_OK;
}
