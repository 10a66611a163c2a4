/* SipHash-2-4: with a key that nobody in the sandbox knows, nobody can make two names collide. */
#include "plimsoll.h"

#include <string.h>

static uint64_t rotated(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds)
{
    while (rounds--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotated(v[1], 13) ^ v[0];
        v[3] = rotated(v[3], 16) ^ v[2];
        v[0] = rotated(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotated(v[1], 17) ^ v[2];
        v[3] = rotated(v[3], 21) ^ v[0];
        v[2] = rotated(v[2], 32);
    }
}

static void absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    mix(v, 2);
    v[0] ^= word;
}

uint64_t siphash(const uint64_t key[2], const void *bytes, size_t size)
{
    uint64_t v[4] = {
        key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
        key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573,
    };
    const char *at = bytes;
    uint64_t word, last = (uint64_t)size << 56;
    for (size_t left = size; left >= 8; left -= 8, at += 8) {
        memcpy(&word, at, 8);
        absorb(v, word);
    }
    word = 0;
    memcpy(&word, at, size % 8);
    absorb(v, last | word);
    v[2] ^= 0xff;
    mix(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
