/* What backoff.cc tells the shim. */
#ifndef TD_DIST_GLOO_BACKOFF_H
#define TD_DIST_GLOO_BACKOFF_H

/* CPU seconds of libgloo's event loops, those of all groups. */
double td_gloo_loop_seconds();

#endif
