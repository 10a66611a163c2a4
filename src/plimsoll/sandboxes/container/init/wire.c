/* The host's stream. Neither end ever blocks, and what waits to be sent is bounded: whoever
 * sends asks for room first, and keeps what it has to say until there is some. */
#include "plimsoll.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OUT_BYTES = 1 << 20,
    BEHIND_BYTES = 256 << 10,
    FAR_BEHIND_BYTES = 512 << 10,
    IN_BYTES = 256 << 10,
};

static unsigned char out[OUT_BYTES];
static size_t out_first, out_end;

static char in[IN_BYTES + 1]; /* a payload's last field becomes a C string in place */
static size_t in_first, in_end;

/* A payload too large for `in`. Without memory for it, its bytes are passed over. */
static struct {
    bool filling;
    struct frame frame;
    size_t got;
} large;

static void put32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static uint32_t get32(const char *at)
{
    const unsigned char *bytes = (const unsigned char *)at;
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static size_t waiting(void)
{
    return out_end - out_first;
}

bool host_is_behind(void)
{
    return waiting() > BEHIND_BYTES;
}

bool host_is_far_behind(void)
{
    return waiting() > FAR_BEHIND_BYTES;
}

bool host_waits(void)
{
    return waiting() > 0;
}

bool room_for(size_t payload)
{
    return OUT_BYTES - waiting() >= HEADER_BYTES + payload;
}

/* A place for a frame at the end of what waits; there is room for it. */
static unsigned char *place_for(size_t payload)
{
    if (OUT_BYTES - out_end < HEADER_BYTES + payload) {
        memmove(out, out + out_first, waiting());
        out_end -= out_first;
        out_first = 0;
    }
    return out + out_end;
}

static void close_frame(unsigned char *at, uint8_t kind, uint32_t number, size_t payload)
{
    put32(at, (uint32_t)payload);
    at[4] = kind;
    put32(at + 5, number);
    out_end += HEADER_BYTES + payload;
}

void send_frame(uint8_t kind, uint32_t number, const void *payload, size_t size)
{
    unsigned char *at = place_for(size);
    if (size)
        memcpy(at + HEADER_BYTES, payload, size);
    close_frame(at, kind, number, size);
}

void send_number(uint8_t kind, uint32_t number, uint32_t value)
{
    unsigned char bytes[4];
    put32(bytes, value);
    send_frame(kind, number, bytes, sizeof bytes);
}

/* One read of `fd` as one frame. As read(): 0 at the end, -1 with errno. */
ssize_t send_from(int fd, uint8_t kind, uint32_t number, size_t most)
{
    unsigned char *at = place_for(most);
    ssize_t got = read(fd, at + HEADER_BYTES, most);
    if (got > 0)
        close_frame(at, kind, number, (size_t)got);
    return got;
}

bool host_flush(void)
{
    while (waiting()) {
        ssize_t sent = write(STDOUT_FILENO, out + out_first, waiting());
        if (sent < 0)
            return errno == EAGAIN || errno == EINTR;
        out_first += (size_t)sent;
    }
    out_first = out_end = 0;
    return true;
}

static ssize_t read_into(char *at, size_t room)
{
    ssize_t got = read(STDIN_FILENO, at, room);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return got > 0 ? got : -1;
}

static bool read_large(void)
{
    size_t left = large.frame.size - large.got;
    char *at = large.frame.payload ? large.frame.payload + large.got : in;
    if (!large.frame.payload && left > IN_BYTES)
        left = IN_BYTES;
    ssize_t got = read_into(at, left);
    if (got > 0)
        large.got += (size_t)got;
    return got >= 0;
}

bool host_read(void)
{
    if (large.filling && large.got < large.frame.size)
        return read_large();
    if (in_first) {
        memmove(in, in + in_first, in_end - in_first);
        in_end -= in_first;
        in_first = 0;
    }
    if (in_end == IN_BYTES)
        return true; /* what is there was not served yet */
    ssize_t got = read_into(in + in_end, IN_BYTES - in_end);
    if (got > 0)
        in_end += (size_t)got;
    return got >= 0;
}

static void begin_large(const struct frame *frame)
{
    large.filling = true;
    large.frame = *frame;
    large.frame.payload = malloc(frame->size + 1);
    large.got = in_end - in_first - HEADER_BYTES;
    if (large.frame.payload)
        memcpy(large.frame.payload, in + in_first + HEADER_BYTES, large.got);
    in_first = in_end = 0;
}

bool host_frame(struct frame *frame)
{
    if (large.filling) {
        *frame = large.frame;
        return large.got == large.frame.size;
    }
    if (in_end - in_first < HEADER_BYTES)
        return false;
    const char *at = in + in_first;
    *frame = (struct frame){.kind = (uint8_t)at[4], .number = get32(at + 5), .size = get32(at)};
    if (frame->size > (frame->kind == DATA ? DATA_BYTES : REQUEST_BYTES)) {
        static const char words[] = "plimsoll-init: a frame of the host is too large\n";
        (void)!write(STDERR_FILENO, words, sizeof words - 1);
        _exit(3);
    }
    if (frame->size + HEADER_BYTES > IN_BYTES) {
        begin_large(frame);
        return large.got == frame->size && host_frame(frame);
    }
    frame->payload = in + in_first + HEADER_BYTES;
    return in_end - in_first >= HEADER_BYTES + frame->size;
}

void host_frame_done(struct frame *frame)
{
    if (large.filling) {
        free(large.frame.payload);
        large.filling = false;
        return;
    }
    in_first += HEADER_BYTES + frame->size;
}
