/* Eigenvalues of small symmetric matrices. Not for users. */
#ifndef TD_NN_EXTRA_WHITENING_H
#define TD_NN_EXTRA_WHITENING_H

/* a [n,n], row-major and symmetric, is used up. values [n] in falling order; vectors [n,n]: row k
 * is the eigenvector of values[k], of length 1, its largest component (the first of equals)
 * positive, so that the result does not depend on the way. By Jacobi's rotations: accurate to
 * rounding, and quick enough up to some hundred rows. */
void td_symmetric_eigen(double *a, int n, double *values, double *vectors);

#endif
