/* Changes brightness, contrast, saturation and hue of an image. */
#include "data/images/jitter.h"

#include <math.h>

/* ITU-R 601-2 luma in 16 bits, rounded. */
static inline uint8_t grey_of(const uint8_t *rgb)
{
    return (uint8_t)((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/* base + factor (value - base), cut off to whole numbers and to a byte. */
static inline uint8_t blend(uint8_t base, uint8_t value, float factor)
{
    float mixed = (float)base + factor * (float)(value - base);
    return (uint8_t)(mixed <= 0.0f ? 0 : mixed >= 255.0f ? 255 : (int)mixed);
}

static uint8_t mean_grey(const uint8_t *rgb, size_t pixels)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < pixels; i++) {
        sum += grey_of(rgb + 3 * i);
    }
    return pixels > 0 ? (uint8_t)((2 * sum + pixels) / (2 * pixels)) : 0; /* rounded */
}

/* ---- hue: through hue, saturation and value, a byte each ---- */

static uint8_t clip(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void to_hsv(const uint8_t *rgb, uint8_t *hsv)
{
    int r = rgb[0], g = rgb[1], b = rgb[2];
    int most = r > g ? (r > b ? r : b) : (g > b ? g : b);
    int least = r < g ? (r < b ? r : b) : (g < b ? g : b);
    hsv[0] = hsv[1] = 0;
    hsv[2] = (uint8_t)most;
    if (most == least) {
        return;
    }
    float range = (float)(most - least);
    float from_r = (float)(most - r) / range, from_g = (float)(most - g) / range;
    float from_b = (float)(most - b) / range;
    float hue = r == most   ? from_b - from_g
                : g == most ? (float)(2.0 + from_r - from_b)
                            : (float)(4.0 + from_g - from_r);
    hue = (float)fmod(hue / 6.0 + 1.0, 1.0);
    hsv[0] = clip((int)(hue * 255.0));
    hsv[1] = clip((int)(range / (float)most * 255.0));
}

static void from_hsv(const uint8_t *hsv, uint8_t *rgb)
{
    uint8_t value = hsv[2];
    if (hsv[1] == 0) {
        rgb[0] = rgb[1] = rgb[2] = value;
        return;
    }
    float saturation = (float)(hsv[1] / 255.0), sector = (float)(hsv[0] * 6.0 / 255.0);
    int i = (int)floorf(sector);
    float f = sector - (float)i;
    uint8_t p = clip((int)round(value * (1.0 - saturation)));
    uint8_t q = clip((int)round(value * (1.0 - saturation * f)));
    uint8_t t = clip((int)round(value * (1.0 - saturation * (1.0 - f))));
    const uint8_t sectors[6][3] = { { value, t, p }, { q, value, p }, { p, value, t },
                                    { p, q, value }, { t, p, value }, { value, p, q } };
    for (int c = 0; c < 3; c++) {
        rgb[c] = sectors[i % 6][c];
    }
}

static void turn_hue(double factor, uint8_t *rgb, size_t pixels)
{
    uint8_t turn = (uint8_t)(int)(factor * 255.0); /* whole turns fall away */
    for (size_t i = 0; i < pixels; i++) {
        uint8_t hsv[3];
        to_hsv(rgb + 3 * i, hsv);
        hsv[0] = (uint8_t)(hsv[0] + turn);
        from_hsv(hsv, rgb + 3 * i);
    }
}

void td_jitter(td_jitter_kind kind, double factor, uint8_t *rgb, size_t pixels)
{
    float f = (float)factor;
    if (kind == TD_JITTER_HUE) {
        turn_hue(factor, rgb, pixels);
        return;
    }
    uint8_t mean = kind == TD_JITTER_CONTRAST ? mean_grey(rgb, pixels) : 0;
    for (size_t i = 0; i < pixels; i++) {
        uint8_t base = kind == TD_JITTER_SATURATION ? grey_of(rgb + 3 * i) : mean;
        for (int c = 0; c < 3; c++) {
            rgb[3 * i + c] = blend(base, rgb[3 * i + c], f);
        }
    }
}
