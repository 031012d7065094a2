/* The secret of a job: makes it, proves that one knows it (HMAC-SHA256), reads it from a file. */
#include "dist/comm/token.h"
#include "dist/comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef TD_HAVE_MD
#include <sha2.h>
#endif

td_status td_random_bytes(void *bytes, size_t size)
{
    return getrandom(bytes, size, 0) == (ssize_t)size
               ? TD_OK
               : td_fail(TD_E_IO, "the system gives no random bytes: %s", strerror(errno));
}

/* ---- proofs ---- */

#ifdef TD_HAVE_MD

enum { BLOCK_BYTES = 64 };

static void hash_two(const void *first, size_t first_size, const void *second, size_t second_size,
                     unsigned char digest[TD_PROOF_BYTES])
{
    SHA2_CTX c;
    SHA256Init(&c);
    SHA256Update(&c, first, first_size);
    SHA256Update(&c, second, second_size);
    SHA256Final(digest, &c);
}

void td_hmac_sha256(const void *key, size_t key_size, const void *message, size_t size,
                    unsigned char digest[TD_PROOF_BYTES])
{
    unsigned char block[BLOCK_BYTES] = { 0 }, inner[BLOCK_BYTES], outer[BLOCK_BYTES];
    if (key_size > BLOCK_BYTES) {
        hash_two(key, key_size, "", 0, block);
    } else {
        memcpy(block, key, key_size);
    }
    for (int i = 0; i < BLOCK_BYTES; i++) {
        inner[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5c;
    }
    hash_two(inner, BLOCK_BYTES, message, size, digest);
    hash_two(outer, BLOCK_BYTES, digest, TD_PROOF_BYTES, digest);
}

td_status td_token_make(td_token *token)
{
    token->set = true;
    return td_random_bytes(token->bytes, sizeof(token->bytes));
}

#else

/* Never called: td_token_parse gives no token. */
void td_hmac_sha256(const void *key, size_t key_size, const void *message, size_t size,
                    unsigned char digest[TD_PROOF_BYTES])
{
    (void)key, (void)key_size, (void)message, (void)size;
    memset(digest, 0, TD_PROOF_BYTES);
}

td_status td_token_make(td_token *token)
{
    *token = (td_token){ 0 };
    return TD_OK;
}

#endif

void td_token_prove(const td_token *token, td_side side,
                    const unsigned char client_nonce[TD_NONCE_BYTES],
                    const unsigned char server_nonce[TD_NONCE_BYTES],
                    unsigned char proof[TD_PROOF_BYTES])
{
    static const char sides[2][16] = { "tandem server", "tandem client" };
    unsigned char message[sizeof(sides[0]) + 2 * TD_NONCE_BYTES];
    memset(proof, 0, TD_PROOF_BYTES);
    if (token->set) {
        memcpy(message, sides[side], sizeof(sides[0]));
        memcpy(message + sizeof(sides[0]), client_nonce, TD_NONCE_BYTES);
        memcpy(message + sizeof(sides[0]) + TD_NONCE_BYTES, server_nonce, TD_NONCE_BYTES);
        td_hmac_sha256(token->bytes, sizeof(token->bytes), message, sizeof(message), proof);
    }
}

bool td_proofs_equal(const unsigned char a[TD_PROOF_BYTES], const unsigned char b[TD_PROOF_BYTES])
{
    volatile unsigned char different = 0;
    for (int i = 0; i < TD_PROOF_BYTES; i++) {
        different |= a[i] ^ b[i];
    }
    return different == 0;
}

/* ---- the token as text ---- */

void td_token_text(const td_token *token, char text[TD_TOKEN_TEXT])
{
    for (int i = 0; i < TD_TOKEN_BYTES; i++) {
        snprintf(text + 2 * (size_t)i, 3, "%02x", token->bytes[i]);
    }
}

td_status td_token_parse(const char *text, const char *source, td_token *token)
{
    size_t digits = strspn(text, "0123456789abcdefABCDEF");
#ifndef TD_HAVE_MD
    return td_fail(TD_E_UNSUPPORTED, "%s: this build has no libmd (make deps), which tokens need",
                   source);
#endif
    TD_CHECK(digits == 2 * (size_t)TD_TOKEN_BYTES && strspn(text, "0") != digits &&
                 text[digits + strspn(text + digits, "\n")] == '\0',
             TD_E_ARG,
             "%s: a token is %d hexadecimal digits, not zeros alone (openssl rand -hex %d)", source,
             2 * TD_TOKEN_BYTES, TD_TOKEN_BYTES);
    for (int i = 0; i < TD_TOKEN_BYTES; i++) {
        (void)sscanf(text + 2 * (size_t)i, "%2hhx", &token->bytes[i]);
    }
    token->set = true;
    return TD_OK;
}

/* Makes the file with a new token, unless another process is first. */
static td_status token_make_file(const char *path)
{
    char own[4096], text[TD_TOKEN_TEXT];
    td_token token;
    TD_TRY(td_token_make(&token));
    TD_CHECK(token.set, TD_E_UNSUPPORTED,
             "%s: this build has no libmd (make deps), which tokens need", path);
    td_token_text(&token, text);
    text[TD_TOKEN_TEXT - 1] = '\n';
    TD_CHECK((size_t)snprintf(own, sizeof(own), "%s.XXXXXX", path) < sizeof(own), TD_E_ARG,
             "the name of the token's file is too long");
    int fd = mkstemp(own); /* mode 0600 */
    bool made = fd >= 0 && write(fd, text, sizeof(text)) == (ssize_t)sizeof(text);
    made = made && (link(own, path) == 0 || errno == EEXIST); /* the file is whole or not there */
    td_status status =
        made ? TD_OK : td_fail(TD_E_IO, "cannot write the token to %s: %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(own);
    }
    return status;
}

td_status td_token_file(const char *path, td_token *token)
{
    char text[TD_TOKEN_TEXT + 1];
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        TD_TRY(token_make_file(path));
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    ssize_t got = fd >= 0 && fstat(fd, &info) == 0 ? read(fd, text, sizeof(text) - 1) : -1;
    int error = errno;
    td_close_fd(fd);
    TD_CHECK(got >= 0, TD_E_IO, "cannot read the token in %s: %s", path, strerror(error));
    TD_CHECK(S_ISREG(info.st_mode) && (info.st_mode & 077) == 0 && info.st_uid == geteuid(),
             TD_E_ARG,
             "%s: a token's file must be a file of this user's that no other user may "
             "read (chmod 600)",
             path);
    text[got] = '\0';
    return td_token_parse(text, path, token);
}

td_status td_token_of_environment(td_token *token)
{
    const char *text = getenv("TANDEM_TOKEN"), *file = getenv("TANDEM_TOKEN_FILE");
    *token = (td_token){ 0 };
    if (text != NULL && text[0] != '\0') {
        return td_token_parse(text, "TANDEM_TOKEN", token);
    }
    return file != NULL && file[0] != '\0' ? td_token_file(file, token) : TD_OK;
}
