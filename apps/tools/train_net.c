/* A complete trainer: from a folder of images to a trained model.
 *
 *   train_net --cfg apps/tools/config/resnet18.yaml TRAIN.DATASET pictures OUT_DIR exp
 *   tdrun --nproc-per-node 2 train_net --cfg apps/tools/config/resnet18.yaml MODEL.SYNCBN True
 *   srun --nodes 2 --ntasks 4 train_net --cfg apps/tools/config/resnet18.yaml
 *
 * `train_net --keys` prints all keys with their defaults. In OUT_DIR come to lie the resolved
 * settings, checkpoints/ckpt_ep_NNN after each epoch, best (the model that tested best),
 * metrics.csv and a TensorBoard file. The same command goes on from the highest checkpoint. */
#include "apps/tools/train_net/classify.h"

static td_loader *train_net_load(train_run *r)
{
    td_loader *loader = train_loader(r, train_sampler(r));
    if (loader == NULL) {
        (void)td_fail_context(TD_E_ARG, "TRAIN.BATCH_SIZE %" PRId64, r->args.batch_size);
    }
    return loader;
}

static td_status train_net_program(train_run *r)
{
    classify_run *c = (classify_run *)r;
    TD_TRY(classify_begin(c));
    r->net = classify_net(c);
    r->optim = classify_optim(c);
    if (r->net == NULL || r->optim == NULL) {
        return TD_E_NOMEM; /* or what else has kept them from being made */
    }
    if (r->args.files.resume == NULL) {
        TD_TRY(classify_load_weights(c));
    }
    TD_TRY(train_loop(r, train_net_load));
    return classify_report_bad(c);
}

int main(int argc, char **argv)
{
    static classify_run c = { .base.app = "train_net" };
    return classify_main(&c, train_net_program,
                         "Trains a classifier on folders of images: "
                         "TRAIN.DATASET/TRAIN.SPLIT/CLASS/image. Alone, "
                         "or as one of the processes that tdrun, srun or mpirun has started.",
                         argc, argv);
}
