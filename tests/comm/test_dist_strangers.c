/* The TCP store's server and those who do not belong to its job, or flood it: nothing is served
 * without the token, and others are answered meanwhile. */
// run: waits
#include "tensor/clock.h"
#include "dist/comm/engines/shm/shm.h"
#include "dist/comm/store/tcp.h"
#include "dist/comm/store/tcp_connection.h"
#include "tests/comm/dist_served.h"
#include "tests/comm/dist_store.h"
#include "tests/help/temp_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the secret ---- */

static void assert_digest(const void *key, size_t key_size, const void *message, size_t size,
                          const char *wanted)
{
    unsigned char digest[TD_PROOF_BYTES];
    char text[2 * TD_PROOF_BYTES + 1];
    td_hmac_sha256(key, key_size, message, size, digest);
    for (int i = 0; i < TD_PROOF_BYTES; i++) {
        snprintf(text + 2 * (size_t)i, 3, "%02x", digest[i]);
    }
    assert_string_equal(text, wanted);
}

/* Test cases 1, 2, 3, 6 and 7 of RFC 4231. */
static void hmac_is_rfc_4231s(void **state)
{
    (void)state;
    unsigned char key[131], message[50];
    memset(key, 0x0b, 20);
    assert_digest(key, 20, "Hi There", 8,
                  "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    assert_digest("Jefe", 4, "what do ya want for nothing?", 28,
                  "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    memset(message, 0xdd, sizeof(message));
    assert_digest(key, 20, message, sizeof(message),
                  "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    assert_digest(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54,
                  "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    static const char long_data[] =
        "This is a test using a larger than block-size key and a larger than block-size data. The "
        "key needs to be hashed before being used by the HMAC algorithm.";
    assert_digest(key, sizeof(key), long_data, sizeof(long_data) - 1,
                  "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

static void tokens_in_files(void **state)
{
    (void)state;
    td_token first, second;
    struct stat info;
    const char *path = temp_path("token");
    assert_int_equal(td_token_file(path, &first), TD_OK); /* made */
    assert_int_equal(td_token_file(path, &second), TD_OK);
    assert_memory_equal(first.bytes, second.bytes, TD_TOKEN_BYTES);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(td_token_file(path, &second), TD_E_ARG);
    assert_error_says("chmod 600", NULL);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(td_token_file(path, &second), TD_E_ARG);
    assert_int_equal(chmod(path, 0600), 0);
    if (chown(path, 65534, (gid_t)-1) == 0) { /* root may give files away */
        assert_int_equal(td_token_file(path, &second), TD_E_ARG);
    }
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    assert_int_equal(td_token_file(temp_path("fifo"), &second), TD_E_ARG);
    assert_int_equal(td_token_file("/nowhere/token", &second), TD_E_IO);
    assert_int_equal(td_token_parse("0123", "here", &second), TD_E_ARG);
    assert_error_says("here", "32 hexadecimal digits", NULL);
    assert_int_equal(td_token_parse("0123456789abcdef0123456789abcdeg", "here", &second), TD_E_ARG);
    assert_int_equal(td_token_parse("00000000000000000000000000000000", "here", &second), TD_E_ARG);
}

/* A proof counts as a whole: one that is wrong in any one bit is another proof. */
static void proofs_are_compared_whole(void **state)
{
    (void)state;
    unsigned char mine[TD_PROOF_BYTES], theirs[TD_PROOF_BYTES];
    for (int i = 0; i < TD_PROOF_BYTES; i++) {
        mine[i] = theirs[i] = (unsigned char)(17 * i);
    }
    assert_true(td_proofs_equal(mine, theirs));
    for (int bit = 0; bit < 8 * TD_PROOF_BYTES; bit++) {
        theirs[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(td_proofs_equal(mine, theirs));
        theirs[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

/* ---- one server ---- */

static void assert_no_keys(td_store *store)
{
    int64_t keys;
    assert_int_equal(td_store_count(store, &keys), TD_OK);
    assert_int_equal(keys, 0);
}

/* All of these are followed by a request that sets a key. */
static void nothing_is_served_without_the_token(void **state)
{
    (void)state;
    served s = serve();
    td_token other = raw_new_token();
    unsigned char set[64], proof[TD_PROOF_BYTES];
    size_t size = raw_request(set, TD_STORE_SET, "k", "v", 1);

    int fd = raw_connect(s.port); /* a hello and no proof: the request is taken for the proof */
    raw_greet(fd, NULL);
    raw_send(fd, set, size);
    raw_send(fd, set, size);
    assert_int_equal(raw_rest(fd), 0);

    fd = raw_connect(s.port);
    raw_greet(fd, &other);
    raw_send(fd, set, size);
    assert_int_equal(raw_rest(fd), 0);

    /* The server's own proof, sent back; and the proof of another connection. */
    unsigned char hello[TD_WIRE_CLIENT_HELLO_BYTES] = TD_WIRE_HELLO;
    unsigned char answer[TD_WIRE_SERVER_HELLO_BYTES];
    for (int old = 0; old < 2; old++) {
        fd = raw_connect(s.port);
        raw_send(fd, hello, sizeof(hello));
        assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
        if (old == 0) {
            memcpy(proof, answer + TD_WIRE_CLIENT_HELLO_BYTES, sizeof(proof));
        }
        raw_send(fd, proof, sizeof(proof));
        td_token_prove(&s.token, TD_CLIENT, hello + TD_WIRE_HELLO_BYTES,
                       answer + TD_WIRE_HELLO_BYTES, proof);
        (void)send(fd, set, size, MSG_NOSIGNAL);
        assert_int_equal(raw_rest(fd), 0);
    }
    assert_no_keys(s.store);
    end(s);
}

/* A client of version 1 is told our version, and nothing else. */
static void former_versions_are_told(void **state)
{
    (void)state;
    served s = serve();
    char answer[8];
    int fd = raw_connect(s.port);
    raw_send(fd, "TDSTORE\x01", 8);
    assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_memory_equal(answer, TD_WIRE_HELLO, sizeof(answer));
    assert_int_equal(raw_rest(fd), 0);
    end(s);
}

static void clients_know_another_jobs_server(void **state)
{
    (void)state;
    served s = serve();
    td_token other = raw_new_token();
    td_store *store;
    double begin = td_clock();
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, 20, &other, &store), TD_E_MISMATCH);
    assert_error_says("has another token", "--token-file", NULL);
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, 20, NULL, &store), TD_E_MISMATCH);
    assert_error_says("wants a token and this process has none", NULL);
    assert_true(td_clock() - begin < 20);
    td_tcp_server *open;
    assert_int_equal(td_tcp_server_open("127.0.0.1", 0, NULL, &open), TD_OK);
    assert_int_equal(td_tcp_store_connect("127.0.0.1", td_tcp_server_port(open), 2, &other, &store),
                     TD_E_TIMEOUT);
    assert_error_says("has no token and this process has one", NULL);
    td_tcp_server_stop(open);
    end(s);
}

/* What is said about a stranger to a console that nobody reads is not waited for. */
static void an_unread_console_stops_nobody(void **state)
{
    (void)state;
    char bytes[4096] = { 0 };
    int ends[2], before = dup(STDERR_FILENO);
    served s = serve();
    s.store->timeout = 5;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    while (write(ends[1], bytes, sizeof(bytes)) > 0) {
    }
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    dup2(ends[1], STDERR_FILENO);
    close(raw_connect(s.port));
    td_sleep(0.2);
    td_status status = td_store_set_text(s.store, "k", "1");
    dup2(before, STDERR_FILENO);
    while (read(ends[0], bytes, sizeof(bytes)) > 0) {
    }
    assert_int_equal(status, TD_OK);
    close(before);
    close(ends[0]);
    close(ends[1]);
    end(s);
}

/* Who says nothing, or stops inside a request, is not kept; who is idle, or waits, is. */
static void silence_ends_connections(void **state)
{
    (void)state;
    served s = serve();
    td_tcp_server_patience(s.server, 0.3);
    unsigned char set[64], get[64];
    size_t get_size = raw_request(get, TD_STORE_GET, "late", "", 0);
    (void)raw_request(set, TD_STORE_SET, "k", "v", 1);
    int idle = raw_connect(s.port), waits = raw_connect(s.port);
    raw_greet(idle, &s.token);
    raw_greet(waits, &s.token);
    raw_send(waits, get, get_size);
    int silent = raw_connect(s.port), greeted = raw_connect(s.port);
    raw_greet(greeted, NULL);
    int half = raw_connect(s.port), body = raw_connect(s.port);
    raw_greet(half, &s.token);
    raw_send(half, set, 7);
    raw_greet(body, &s.token);
    raw_send(body, set, TD_WIRE_REQUEST_BYTES + 1);
    assert_int_equal(raw_rest(silent), 0);
    assert_int_equal(raw_rest(greeted), 0);
    assert_int_equal(raw_rest(half), 0);
    assert_int_equal(raw_rest(body), 0);
    assert_no_keys(s.store);
    assert_int_equal(td_store_set_text(s.store, "late", "1"), TD_OK);
    char answer[TD_WIRE_REPLY_BYTES + 1];
    assert_int_equal(recv(waits, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    raw_send(idle, get, get_size);
    assert_int_equal(recv(idle, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    close(idle);
    close(waits);
    end(s);
}

/* A stranger's connection does not delay the end. */
/* Strangers have a share of the descriptors: the oldest makes room for the next. */
static void strangers_leave_descriptors(void **state)
{
    (void)state;
    enum { FILES = 160, STRANGERS = 80 };
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ FILES, before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    served s = serve();
    int fd[STRANGERS];
    for (int i = 0; i < STRANGERS; i++) {
        fd[i] = raw_connect(s.port);
    }
    for (int i = 0; i < STRANGERS - FILES / 4 - 1; i++) {
        assert_int_equal(raw_rest(fd[i]), 0); /* ended, and closed here, too */
    }
    int mine = open("/dev/null", O_RDONLY);
    assert_true(mine >= 0);
    close(mine);
    td_store *store;
    assert_int_equal(td_tcp_store_connect("127.0.0.1", s.port, 5, &s.token, &store), TD_OK);
    td_store_close(store);
    for (int i = STRANGERS - FILES / 4 - 1; i < STRANGERS; i++) {
        close(fd[i]);
    }
    end(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void drain_waits_for_members_only(void **state)
{
    (void)state;
    served s = serve();
    int stranger = raw_connect(s.port);
    raw_greet(stranger, NULL);
    td_store_close(s.store);
    s.store = NULL;
    assert_true(td_tcp_server_drain(s.server, 10));
    close(stranger);
    end(s);
}

/* A job of one host cannot be reached from another: the address is the loopback's. */
static void loopback_only(void **state)
{
    (void)state;
    served s = serve();
    char line[512], wanted[16];
    bool found = false;
    FILE *sockets = fopen("/proc/net/tcp", "r");
    assert_non_null(sockets);
    snprintf(wanted, sizeof(wanted), "0100007F:%04X", (unsigned)s.port);
    while (fgets(line, sizeof(line), sockets) != NULL) {
        found |= strstr(line, wanted) != NULL && strstr(line, " 0A ") != NULL;
    }
    fclose(sockets);
    assert_true(found);
    end(s);
}

/* ---- shared memory ---- */

/* What a key names is mapped only if it is memory that tandem has made, of this size. */
static void only_our_memory_is_mapped(void **state)
{
    (void)state;
    enum { BYTES = 1 << 16 };
    void *memory, *mapped;
    int made, file = open(temp_path("victim"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(file, BYTES), 0);
    assert_int_equal(td_shm_map(getpid(), file, BYTES, &mapped), TD_E_MISMATCH);
    assert_error_says("is no shared memory of 65536 bytes", NULL);
    close(file);
    int loose = memfd_create("tandem", MFD_ALLOW_SEALING); /* its size may change: SIGBUS */
    assert_int_equal(ftruncate(loose, BYTES), 0);
    assert_int_equal(td_shm_map(getpid(), loose, BYTES, &mapped), TD_E_MISMATCH);
    close(loose);
    assert_int_equal(td_shm_create("test", BYTES, &memory, &made), TD_OK);
    assert_int_equal(td_shm_map(getpid(), made, 2 * BYTES, &mapped), TD_E_MISMATCH);
    assert_int_not_equal(ftruncate(made, 0), 0);
    assert_int_equal(td_shm_map(getpid(), made, BYTES, &mapped), TD_OK);
    *(int *)memory = 7;
    assert_int_equal(*(int *)mapped, 7);
    assert_int_equal(munmap(mapped, BYTES), 0);
    assert_int_equal(munmap(memory, BYTES), 0);
    close(made);
    assert_int_equal(td_shm_map(getpid(), made, BYTES, &mapped), TD_E_IO);
}

/* A rank that has died is the cause, not who may open what. */
static void memory_of_the_dead(void **state)
{
    (void)state;
    void *mapped;
    char wanted[32];
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    for (int zombie = 1; zombie >= 0; zombie--) {
        assert_int_equal(td_shm_map(pid, 9, 4096, &mapped), TD_E_PEER);
        snprintf(wanted, sizeof(wanted), "(pid %d) has died", (int)pid);
        assert_error_says(wanted, NULL);
        assert_int_equal(waitpid(pid, NULL, 0), zombie ? pid : -1);
    }
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hmac_is_rfc_4231s),
        FOLDER_TEST(tokens_in_files),
        cmocka_unit_test(proofs_are_compared_whole),
        cmocka_unit_test(nothing_is_served_without_the_token),
        cmocka_unit_test(former_versions_are_told),
        cmocka_unit_test(clients_know_another_jobs_server),
        cmocka_unit_test(an_unread_console_stops_nobody),
        cmocka_unit_test(silence_ends_connections),
        cmocka_unit_test(strangers_leave_descriptors),
        cmocka_unit_test(drain_waits_for_members_only),
        cmocka_unit_test(loopback_only),
        FOLDER_TEST(only_our_memory_is_mapped),
        cmocka_unit_test(memory_of_the_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
