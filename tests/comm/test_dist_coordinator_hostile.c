/* The launcher's coordinator and messages that no launcher would send: numbers of any size, agents
 * that do not exist, orders out of turn. It goes on, and ends when it is told to. */
#include "tensor/clock.h"
#include "dist/comm/launch/launcher.h"
#include "dist/comm/launch/link.h"
#include "tests/comm/memory_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- invented messages ---- */

enum { AGENTS = 6, BATCH = 10000 };

static uint64_t seed = 1;

static uint32_t any(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static const char *number(void)
{
    static const char *const odd[] = {
        "-2147483648",          "-1", "1024", "1025", "65", "2147483647",
        "99999999999999999999", "x",  "",     "1e9"
    };
    static const char *const usual[] = { "0", "1", "2", "3" };
    return any(3) == 0 ? odd[any(sizeof(odd) / sizeof(*odd))] : usual[any(4)];
}

static void invent(td_link *agent)
{
    char text[4096];
    size_t length;
    td_worker_failure f = { .when = 1, .rank = (int)any(4), .status = 256, .pid = any(100) };
    switch (any(9)) {
    case 0:
        snprintf(text, sizeof(text), "join host%u %s %s %s", any(3), number(), number(), number());
        break;
    case 1:
        snprintf(text, sizeof(text), "done %s", number());
        break;
    case 2:
        snprintf(text, sizeof(text), "stopped %s", number());
        break;
    case 3: {
        char packed[3000];
        snprintf(f.host, sizeof(f.host), "host%u", any(3));
        snprintf(f.message, sizeof(f.message), "rank (pid %u on host%u) has died", any(100),
                 any(3));
        td_failure_pack(&f, packed, sizeof(packed));
        packed[any(3) == 0 ? any(sizeof(packed)) : sizeof(packed) - 1] = '\0';
        snprintf(text, sizeof(text), "fail %s %s", number(), packed);
        break;
    }
    case 4: /* a true one ends the job */
        snprintf(text, sizeof(text), "leave %s", any(500) == 0 ? "15" : "2147483647");
        break;
    case 5:
        snprintf(text, sizeof(text), "beat");
        break;
    default:
        length = 1 + (any(10) == 0 ? any(sizeof(text) - 1) : any(40));
        for (size_t i = 0; i < length; i++) {
            text[i] = (char)(1 + any(255));
        }
        text[length < sizeof(text) ? length : length - 1] = '\0';
        if (any(2) == 0 && length > 8) {
            memcpy(text, any(2) == 0 ? "join " : "fail ", 5);
        }
    }
    assert_int_equal(td_link_send(agent, "%s", text), TD_OK);
}

/* Reads what it was told; false: the coordinator has read all that was sent. */
static bool unread(memory_store *m, td_link *agents)
{
    bool left = false;
    for (int i = 0; i < AGENTS; i++) {
        char key[64], *text = NULL;
        bool there;
        snprintf(key, sizeof(key), "launch/%d/up/%d", agents[i].agent, agents[i].sent - 1);
        assert_int_equal(td_store_check(&m->store, key, &there), TD_OK);
        left |= there;
        do {
            free(text);
            assert_int_equal(td_link_receive(&agents[i], &text), TD_OK);
        } while (text != NULL);
    }
    return left;
}

static void no_invented_message_breaks_it(void **state)
{
    (void)state;
    int batches = getenv("TANDEM_LONG") != NULL ? 100 : 3;
    for (int batch = 0; batch < batches; batch++) {
        memory_store m = MEMORY_STORE;
        td_launch_options options = { .min_nodes = 1 + (int)any(2),
                                      .max_nodes = 2 + (int)any(3),
                                      .workers = 1,
                                      .run_id = "run",
                                      .max_restarts = 1000000,
                                      .join_timeout = 60,
                                      .grace = 0.01 };
        td_link agents[AGENTS];
        td_coordinator *c = td_coordinator_new(&options, &m.store);
        assert_non_null(c);
        for (int i = 0; i < AGENTS; i++) {
            assert_int_equal(td_link_open(&m.store, &agents[i]), TD_OK);
        }
        for (int i = 0; i < BATCH; i++) {
            invent(&agents[any(AGENTS)]);
            if (i % 200 == 0) {
                td_coordinator_look(c);
            }
        }
        td_coordinator_look(c);
        assert_false(unread(&m, agents));
        (void)td_coordinator_free(c);
        td_table_clear(&m.table);
    }
    print_message("# %d messages\n", batches * BATCH);
}

/* A number of agents that nobody has started takes neither time nor memory. */
static void agents_that_do_not_exist(void **state)
{
    (void)state;
    static const int64_t counts[] = {
        500000, 50000000, INT64_MAX, INT64_MIN, -1, INT64_C(1) << 31
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        memory_store m = MEMORY_STORE;
        td_launch_options options = {
            .min_nodes = 1, .max_nodes = 1, .workers = 1, .run_id = "run", .join_timeout = 60
        };
        assert_int_equal(td_store_add(&m.store, "launch/agents", counts[i], NULL), TD_OK);
        double begin = td_clock();
        td_coordinator *c = td_coordinator_new(&options, &m.store);
        assert_non_null(c);
        for (int look = 0; look < 5; look++) {
            td_coordinator_look(c);
        }
        (void)td_coordinator_free(c);
        assert_true(td_clock() - begin < 10);
        td_table_clear(&m.table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_invented_message_breaks_it),
        cmocka_unit_test(agents_that_do_not_exist),
    };
    return cmocka_run_group_tests_name("dist: the coordinator and strange messages", tests, NULL,
                                       NULL);
}
