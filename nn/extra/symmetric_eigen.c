/* The cyclic Jacobi method (Jacobi 1846; Golub and Van Loan, Matrix Computations, 8.5). */
#include "nn/extra/symmetric_eigen.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

enum { MOST_SWEEPS = 60 }; /* it converges quadratically: six to ten are usual */

typedef struct rotation {
    double c, s;
} rotation;

/* The rotation of rows and columns p and q after which a[p][q] is 0; of the two angles the one
 * below 45 degrees. */
static rotation annihilate(double app, double aqq, double apq)
{
    double tau = (aqq - app) / (2.0 * apq);
    double t = (tau >= 0.0 ? 1.0 : -1.0) / (fabs(tau) + sqrt(1.0 + tau * tau));
    double c = 1.0 / sqrt(1.0 + t * t);
    return (rotation){ c, t * c };
}

/* x, y = c x - s y, s x + c y, over n elements that lie `step` apart. */
static void rotate(double *x, double *y, int n, int step, rotation r)
{
    for (int i = 0; i < n; i++, x += step, y += step) {
        double old = *x;
        *x = r.c * old - r.s * *y;
        *y = r.s * old + r.c * *y;
    }
}

/* One sweep over all pairs; false: everything beside the diagonal was 0 to rounding. */
static bool sweep(double *a, int n, double *vectors)
{
    bool changed = false;
    for (int p = 0; p < n; p++) {
        for (int q = p + 1; q < n; q++) {
            double apq = a[p * n + q];
            if (fabs(apq) <= DBL_EPSILON * sqrt(fabs(a[p * n + p] * a[q * n + q])) ||
                fabs(apq) <= DBL_MIN) {
                continue;
            }
            rotation r = annihilate(a[p * n + p], a[q * n + q], apq);
            rotate(a + p * n, a + q * n, n, 1, r); /* rows */
            rotate(a + p, a + q, n, n, r);         /* columns */
            a[p * n + q] = a[q * n + p] = 0.0;
            rotate(vectors + p * n, vectors + q * n, n, 1, r);
            changed = true;
        }
    }
    return changed;
}

static void swap_rows(double *a, double *b, int n)
{
    for (int i = 0; i < n; i++) {
        double old = a[i];
        a[i] = b[i];
        b[i] = old;
    }
}

static void sort(double *values, double *vectors, int n)
{
    for (int k = 0; k < n; k++) {
        int largest = k;
        for (int i = k + 1; i < n; i++) {
            largest = values[i] > values[largest] ? i : largest;
        }
        swap_rows(&values[k], &values[largest], 1);
        swap_rows(vectors + k * n, vectors + largest * n, n);
    }
}

/* Components that are equal but for rounding count as equal. */
static void point_up(double *vector, int n)
{
    int largest = 0;
    for (int i = 1; i < n; i++) {
        largest = fabs(vector[i]) > fabs(vector[largest]) * (1.0 + 1e-9) ? i : largest;
    }
    for (int i = 0; i < n && vector[largest] < 0.0; i++) {
        vector[i] = i == largest ? vector[i] : -vector[i];
    }
    vector[largest] = fabs(vector[largest]);
}

void td_symmetric_eigen(double *a, int n, double *values, double *vectors)
{
    for (int i = 0; i < n * n; i++) {
        vectors[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
    }
    for (int round = 0; round < MOST_SWEEPS && sweep(a, n, vectors); round++) {
    }
    for (int k = 0; k < n; k++) {
        values[k] = a[k * n + k];
    }
    sort(values, vectors, n);
    for (int k = 0; k < n; k++) {
        point_up(vectors + k * n, n);
    }
}
