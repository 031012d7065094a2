/* Tests a model that train_net has trained, or torchvision's weights, on a folder of images:
 *
 *   test_net --cfg exp/config.yaml                              OUT_DIR/best
 *   test_net --cfg apps/tools/config/resnet50.yaml MODEL.WEIGHTS resnet50.safetensors
 *
 * With the settings of train_net; alone, or as one of several processes that share the images. */
#include "apps/tools/train_net/classify.h"
#include "apps/tools/common/signals.h"

static td_status test_net_program(train_run *r)
{
    classify_run *c = (classify_run *)r;
    td_evaluation e;
    TD_CHECK(!ranks_elastic(), TD_E_ARG,
             "tdrun --elastic is for training; a test has no state that could go on");
    TD_TRY(train_begin(r));
    r->net = classify_net(c);
    if (r->net == NULL) {
        return TD_E_NOMEM; /* or there is no such model */
    }
    TD_TRY(classify_load_weights(c));
    progress_begin(&r->progress, ranks_first(), 0);
    signals_catch(ranks_first());
    TD_TRY(train_evaluate(r, c->s.test.batch_size, &e));
    if (r->stop) {
        return TD_OK;
    }
    TD_TRY(train_check_evaluation(r, &e));
    td_printf_rank0("%s on %s: Loss %.4f  Acc@1 %.3f  Acc@%" PRId64 " %.3f  (%" PRId64 " images)\n",
                    c->s.model.arch, r->data_name, e.loss, 100 * e.accuracy, r->args.recipe.top_k,
                    100 * e.sums[1] / (double)e.seen, e.seen);
    return classify_report_bad(c);
}

int main(int argc, char **argv)
{
    static classify_run c = { .base.app = "test_net", .tests_only = true };
    return classify_main(
        &c, test_net_program,
        "Tests a classifier on a folder of images: TEST.DATASET/TEST.SPLIT/CLASS/image. "
        "MODEL.WEIGHTS names its file; otherwise it is OUT_DIR/best.",
        argc, argv);
}
