/* Losses of single elements and rows, composed of operations. */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"

#include <float.h>
#include <math.h>

/* What becomes of the losses. */
static td_tensor *reduced(td_tensor *losses, td_loss_reduction reduction, td_site at)
{
    return reduction == TD_LOSS_NONE  ? losses
           : reduction == TD_LOSS_SUM ? td_sum_at(losses, at)
                                      : td_mean_at(losses, at);
}

/* x and target of one shape; nothing is broadcast, as that is rarely meant. */
static void take(const char *op, td_rule rule, td_tensor **x, td_tensor **target, td_site at)
{
    *x = td_op_input(*x, op, "x", rule, at);
    *target = td_op_input(*target, op, "target", rule, at);
    TD_REQUIRE(td_same_shape(*x, *target), at,
               "%s: x%s and target%s must have the same shape; nothing is broadcast", op,
               TD_SHAPE_TEXT(*x), TD_SHAPE_TEXT(*target));
}

td_tensor *td_mse_loss_at(td_loss_options o, td_site at)
{
    take("mse_loss", TD_RULE_OF(mse_loss), &o.x, &o.target, at);
    td_tensor *difference = td_sub_at(o.x, o.target, at);
    return reduced(td_mul_at(difference, difference, at), o.reduction, at);
}

td_tensor *td_l1_loss_at(td_loss_options o, td_site at)
{
    take("l1_loss", TD_RULE_OF(l1_loss), &o.x, &o.target, at);
    return reduced(td_abs_at(td_sub_at(o.x, o.target, at), at), o.reduction, at);
}

/* Huber's loss of x - target, and what it is divided by. */
static td_tensor *huber(const td_huber_loss_options *o, double delta, double by, td_site at)
{
    td_tensor *losses = td_huber_at(td_sub_at(o->x, o->target, at), delta, at);
    return reduced(by != 1.0 ? td_mul_scalar_at(losses, 1.0 / by, at) : losses, o->reduction, at);
}

td_tensor *td_huber_loss_at(td_huber_loss_options o, td_site at)
{
    double delta = td_or_usual(o.delta, 1.0);
    TD_REQUIRE(delta > 0.0, at, "huber_loss: delta is %g; it must be positive", delta);
    take("huber_loss", TD_RULE_OF(huber_loss), &o.x, &o.target, at);
    return huber(&o, delta, 1.0, at);
}

td_tensor *td_smooth_l1_loss_at(td_huber_loss_options o, td_site at)
{
    double beta = td_or_usual(o.delta, 1.0);
    TD_REQUIRE(beta >= 0.0, at, "smooth_l1_loss: delta is %g; it must not be negative", beta);
    take("smooth_l1_loss", TD_RULE_OF(smooth_l1_loss), &o.x, &o.target, at);
    if (beta == 0.0) {
        return reduced(td_abs_at(td_sub_at(o.x, o.target, at), at), o.reduction, at);
    }
    return huber(&o, beta, beta, at);
}

td_tensor *td_bce_with_logits_at(td_bce_options o, td_site at)
{
    take("bce_with_logits", TD_RULE_OF(bce_with_logits), &o.x, &o.target, at);
    td_tensor *log_p = td_softplus_at(td_neg_at(o.x, at), at); /* -log sigmoid(x) */
    if (o.pos_weight != NULL) {
        td_tensor *more = td_mul_at(o.target, td_add_scalar_at(o.pos_weight, -1.0, at), at);
        log_p = td_mul_at(log_p, td_add_scalar_at(more, 1.0, at), at);
    }
    td_tensor *losses = td_add_at(td_sub_at(o.x, td_mul_at(o.x, o.target, at), at), log_p, at);
    return reduced(o.weight != NULL ? td_mul_at(losses, o.weight, at) : losses, o.reduction, at);
}

td_tensor *td_kl_div_at(td_kl_div_options o, td_site at)
{
    take("kl_div", TD_RULE_OF(kl_div), &o.log_p, &o.target, at);
    TD_REQUIRE(!o.batch_mean || (o.reduction == TD_LOSS_MEAN && o.log_p->ndim > 0), at,
               "kl_div: batch_mean is a reduction of its own, of tensors [N,...]");
    td_tensor *t = o.target, *log_t = t;
    if (o.log_target) {
        t = td_exp_at(t, at);
    } else { /* 0 log 0 is 0 */
        log_t = td_log_at(td_clamp_at(t, FLT_MIN, INFINITY, at), at);
    }
    td_tensor *losses = td_mul_at(t, td_sub_at(log_t, o.log_p, at), at);
    if (o.batch_mean) {
        return td_mul_scalar_at(td_sum_at(losses, at), 1.0 / (double)o.log_p->shape[0], at);
    }
    return reduced(losses, o.reduction, at);
}

td_tensor *td_cosine_similarity_at(td_tensor *a, td_tensor *b, int dim, double eps, td_site at)
{
    take("cosine_similarity", TD_RULE_OF(cosine_similarity), &a, &b, at);
    dim = td_check_dim(a, dim, at);
    eps = td_or_usual(eps, 1e-8);
    td_tensor *dot = td_sum_dim_at(td_mul_at(a, b, at), dim, false, at);
    td_tensor *both[2] = { a, b };
    for (int i = 0; i < 2; i++) {
        td_tensor *square = td_sum_dim_at(td_mul_at(both[i], both[i], at), dim, false, at);
        dot = td_mul_at(dot, td_rsqrt_at(td_clamp_at(square, eps * eps, INFINITY, at), at), at);
    }
    return dot;
}

/* The losses `same` where y is 1, and `other` elsewhere. */
static td_tensor *by_sign(td_tensor *y, td_tensor *same, td_tensor *other, td_site at)
{
    td_tensor *one = td_op_new(TD_SCALAR, y->dtype, y, at);
    td_fill_(one, 1.0);
    return td_where_at(td_eq_at(y, one, at), same, other, at);
}

td_tensor *td_cosine_embedding_loss_at(td_cosine_embedding_options o, td_site at)
{
    td_tensor *cosine = td_cosine_similarity_at(o.a, o.b, -1, 1e-6, at);
    take("cosine_embedding_loss", TD_RULE_OF(cosine_embedding_loss), &cosine, &o.target, at);
    td_tensor *same = td_add_scalar_at(td_neg_at(cosine, at), 1.0, at);
    td_tensor *other = td_relu_at(td_add_scalar_at(cosine, -o.margin, at), at);
    return reduced(by_sign(o.target, same, other, at), o.reduction, at);
}

td_tensor *td_hinge_loss_at(td_hinge_options o, td_site at)
{
    take("hinge_loss", TD_RULE_OF(hinge_loss), &o.x, &o.target, at);
    td_tensor *product = td_mul_at(o.x, o.target, at);
    td_tensor *short_of = td_add_scalar_at(td_neg_at(product, at), td_or_usual(o.margin, 1.0), at);
    return reduced(td_relu_at(short_of, at), o.reduction, at);
}

td_tensor *td_hinge_embedding_loss_at(td_hinge_options o, td_site at)
{
    take("hinge_embedding_loss", TD_RULE_OF(hinge_embedding_loss), &o.x, &o.target, at);
    td_tensor *other =
        td_relu_at(td_add_scalar_at(td_neg_at(o.x, at), td_or_usual(o.margin, 1.0), at), at);
    return reduced(by_sign(o.target, o.x, other, at), o.reduction, at);
}
