/* An LSTM's gates, composed of other kernels. */
#include "tensor/kernels/lstm.h"

/* Number k of the parts of [N,...] that are as wide as h [N,H]. */
static td_tensor part(const td_tensor *all, int k, const td_tensor *h)
{
    td_tensor view = *all;
    view.shape[1] = h->shape[1];
    view.offset += k * h->shape[1] * all->stride[1];
    return view;
}

void td_lstm_gates(const td_kernels *kernels, td_tensor *gates, td_tensor *cells, td_tensor *h,
                   const td_tensor *c)
{
    td_tensor i = part(gates, 0, h), f = part(gates, 1, h), g = part(gates, 2, h);
    td_tensor o = part(gates, 3, h), both = *gates;
    td_tensor next = part(cells, 0, h), tanh_c = part(cells, 1, h);
    both.shape[1] = 2 * h->shape[1];
    kernels->unary(TD_UNARY_sigmoid, &both, &both, 0.0, 0.0);
    kernels->unary(TD_UNARY_tanh, &g, &g, 0.0, 0.0);
    kernels->unary(TD_UNARY_sigmoid, &o, &o, 0.0, 0.0);
    kernels->binary(TD_BINARY_mul, &next, &f, c);
    kernels->binary(TD_BINARY_mul, &tanh_c, &i, &g); /* in tanh(c)'s place */
    kernels->axpy(&next, 1.0, &tanh_c);
    kernels->unary(TD_UNARY_tanh, &tanh_c, &next, 0.0, 0.0);
    kernels->binary(TD_BINARY_mul, h, &o, &tanh_c);
}

/* dx = a b times the slope of op, whose result was y. */
static void through(const td_kernels *kernels, td_unary_op op, td_tensor *dx, const td_tensor *a,
                    const td_tensor *b, const td_tensor *y)
{
    kernels->binary(TD_BINARY_mul, dx, a, b);
    kernels->unary_grad(op, dx, dx, NULL, y, 0.0, 0.0, false);
}

void td_lstm_gates_grad(const td_kernels *kernels, td_tensor *dgates, td_tensor *dc,
                        const td_tensor *dh, const td_tensor *gates, const td_tensor *cells,
                        const td_tensor *c)
{
    td_tensor i = part(gates, 0, dh), f = part(gates, 1, dh), g = part(gates, 2, dh);
    td_tensor o = part(gates, 3, dh), tanh_c = part(cells, 1, dh);
    td_tensor di = part(dgates, 0, dh), df = part(dgates, 1, dh), dg = part(dgates, 2, dh);
    td_tensor dout = part(dgates, 3, dh);
    through(kernels, TD_UNARY_sigmoid, &dout, dh, &tanh_c, &o);
    kernels->binary(TD_BINARY_mul, &di, dh, &o); /* in di's place */
    kernels->unary_grad(TD_UNARY_tanh, dc, &di, NULL, &tanh_c, 0.0, 0.0, true);
    through(kernels, TD_UNARY_sigmoid, &di, dc, &g, &i);
    through(kernels, TD_UNARY_sigmoid, &df, dc, c, &f);
    through(kernels, TD_UNARY_tanh, &dg, dc, &i, &g);
    kernels->binary(TD_BINARY_mul, dc, dc, &f);
}
