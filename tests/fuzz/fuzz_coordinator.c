/* Fuzzing the launcher's coordinator: messages of four agents with a zero byte after each. A
 * message's first byte names the agent, and whether the coordinator looks before the next one. The
 * input's first byte chooses what kind of job it is. What the coordinator orders is in range. */
#include "dist/comm/launch/launcher.h"
#include "dist/comm/launch/link.h"
#include "tests/comm/memory_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { AGENTS = 4 };

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* An order: "start" has numbers that an agent takes, and the end comes once. */
static void check_order(const char *text, const td_launch_options *options)
{
    int round, restarts, node, nodes, first, world;
    if (strncmp(text, "start ", 6) == 0) {
        require(sscanf(text, "start %d %d %d %d %d %d run\n", &round, &restarts, &node, &nodes,
                       &first, &world) == 6);
        require(round >= restarts && restarts >= 0 && restarts <= options->max_restarts);
        require(nodes >= options->min_nodes && nodes <= options->max_nodes);
        require(node >= 0 && node < nodes && first >= node && first < world);
        require(world >= nodes && world <= nodes * TD_LAUNCH_MAX_WORKERS);
    } else {
        require(strncmp(text, "stop ", 5) == 0 || strncmp(text, "end ", 4) == 0 ||
                strcmp(text, "again") == 0);
    }
}

static void look(td_coordinator *c, td_link *agents, const td_launch_options *options)
{
    td_coordinator_look(c);
    for (int i = 0; i < AGENTS; i++) {
        for (char *text;; free(text)) {
            require(td_link_receive(&agents[i], &text) == TD_OK);
            if (text == NULL) {
                break;
            }
            check_order(text, options);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) {
        return 0;
    }
    memory_store m = MEMORY_STORE;
    td_launch_options options = { .min_nodes = 1 + (bytes[0] & 1),
                                  .max_nodes = 1 + (bytes[0] & 1) + (bytes[0] >> 1 & 1),
                                  .workers = 1,
                                  .run_id = "run",
                                  .max_restarts = bytes[0] >> 2 & 3,
                                  .join_timeout = bytes[0] & 16 ? 60 : 0 };
    td_coordinator *c = td_coordinator_new(&options, &m.store);
    td_link agents[AGENTS];
    require(c != NULL);
    for (int i = 0; i < AGENTS; i++) {
        require(td_link_open(&m.store, &agents[i]) == TD_OK);
    }
    for (size_t at = 1; at < size;) {
        const uint8_t *message = bytes + at;
        const uint8_t *end = memchr(message, '\0', size - at);
        size_t length = end != NULL ? (size_t)(end - message) : size - at;
        at += length + 1;
        if (length > 1) {
            require(td_link_send(&agents[message[0] % AGENTS], "%.*s", (int)length - 1,
                                 (const char *)message + 1) == TD_OK);
        }
        if (length > 0 && message[0] >= 0x80) {
            look(c, agents, &options);
        }
    }
    look(c, agents, &options);
    (void)td_coordinator_free(c);
    td_table_clear(&m.table);
    return 0;
}
