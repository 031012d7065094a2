/* Changes of colour, as PIL's ImageEnhance and torchvision's ColorJitter make them, byte for byte
 * but for hue, where a byte may differ by one. Users do not include this. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum td_jitter_kind {
    TD_JITTER_BRIGHTNESS, /* blend with black; factor >= 0, 1: as it is */
    TD_JITTER_CONTRAST,   /* blend with the mean grey */
    TD_JITTER_SATURATION, /* blend with the picture in grey */
    TD_JITTER_HUE,        /* turn by factor in [-0.5, 0.5] */
    TD_JITTER_KINDS,
} td_jitter_kind;

/* In place: rgb [pixels][3]. */
void td_jitter(td_jitter_kind kind, double factor, uint8_t *rgb, size_t pixels);
