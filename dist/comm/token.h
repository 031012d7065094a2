/* A job's token: 128 random bits that each process of the job knows. Clients and server of a TCP
 * store prove to each other that they know the token, without sending it (wire.h). */
#pragma once

#include "tensor/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { TD_TOKEN_BYTES = 16, TD_TOKEN_TEXT = 33, TD_NONCE_BYTES = 16, TD_PROOF_BYTES = 32 };

typedef struct td_token {
    bool set; /* false: the job has no token */
    unsigned char bytes[TD_TOKEN_BYTES];
} td_token;

/* A new token; none if this build has no libmd, which computes the proofs. */
td_status td_token_make(td_token *token);
/* The token as 32 hexadecimal digits, and back. source: for messages. */
void td_token_text(const td_token *token, char text[TD_TOKEN_TEXT]);
td_status td_token_parse(const char *text, const char *source, td_token *token);
/* The token in a file, which only its owner may read. The first process makes the file. */
td_status td_token_file(const char *path, td_token *token);
/* TANDEM_TOKEN, or the file that TANDEM_TOKEN_FILE names; otherwise no token. */
td_status td_token_of_environment(td_token *token);

/* Random bytes that nobody can guess. */
td_status td_random_bytes(void *bytes, size_t size);

typedef enum td_side { TD_SERVER, TD_CLIENT } td_side;

/* What a side sends: HMAC-SHA256 over the side and both nonces, with the token as key. All zero
 * without a token. */
void td_token_prove(const td_token *token, td_side side,
                    const unsigned char client_nonce[TD_NONCE_BYTES],
                    const unsigned char server_nonce[TD_NONCE_BYTES],
                    unsigned char proof[TD_PROOF_BYTES]);
/* Takes the same time wherever the proofs differ. */
bool td_proofs_equal(const unsigned char a[TD_PROOF_BYTES], const unsigned char b[TD_PROOF_BYTES]);

/* HMAC-SHA256 (RFC 2104). */
void td_hmac_sha256(const void *key, size_t key_size, const void *message, size_t size,
                    unsigned char digest[TD_PROOF_BYTES]);
