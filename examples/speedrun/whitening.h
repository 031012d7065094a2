/* A first convolution that whitens: what comes out of it for patches of the given images is
 * uncorrelated and of variance 1. */
#pragma once

#include "tandem.h"

/* Filters [2 I KH KW, I,KH,KW] that whiten patches of images [N,I,H,W] (f32, on the CPU):
 * eigenvectors of the patches' covariance (no mean is subtracted), divided by sqrt(eigenvalue +
 * eps), the largest first; then the same with the opposite sign. */
td_status whitening_init(td_tensor *weight, const td_tensor *images, double eps);

/* a [n,n], row-major and symmetric, is used up. values [n] in falling order; vectors [n,n]: row k
 * is the eigenvector of values[k], of length 1, its largest component (the first of equals)
 * positive, so that the result does not depend on the way. By Jacobi's rotations: accurate to
 * rounding, and quick enough up to some hundred rows. */
void symmetric_eigen(double *a, int n, double *values, double *vectors);
