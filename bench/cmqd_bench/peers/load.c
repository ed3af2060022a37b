/*
 * The load of `cmqd_bench peers`: one small program for all brokers, so that the cost of the load does not depend on
 * the broker, and leaves the machine to the broker.
 *
 * The harness (Python) opens and authenticates the connections, prepares the bytes of the requests and passes both to
 * this program: connections as inherited descriptors, requests as templates on standard input. This program patches
 * times and numbers into the templates, writes, reads, checks every reply and measures. A protocol is a row of
 * `PROTOCOLS`: a parser of replies and a builder of deletes.
 *
 * Standard output: the line "start" when the measured time begins, "end" when it ends (the harness reads the CPU of the
 * broker at both), then one JSON object; in between "second" and a JSON object each second, if the job asks for it. A reply that is an error ends the program with {"error": text}, exit code 1.
 *
 * One thread, level-triggered epoll. A connection's requests of one round of the loop leave in one write.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define NEVER UINT64_MAX
#define MARK "@cmqd-bench:"
#define MARK_BYTES (sizeof MARK - 1)
#define STAMP_DIGITS 16
#define PARK_NS 1000000ull       /* pause of a consumer whose broker has no waiting receive (PostgreSQL) */
#define QUIET_NS (SECOND / 5)    /* silence after which waiting receives are taken as empty */
#define STALL_NS (30 * SECOND)   /* a broker that owes a reply and is silent for this time ends the run */
#define FIRST_ID 256             /* request ids of cmqd always take three bytes, as those of an older connection do */
#define MAX_ID 65535
#define TAG_SLOTS 16384
#define EVENTS 256

/* ------------------------------------------------------------------------------------------------ the histogram */

#define PRECISION_BITS 7 /* as cmqd_load.histogram: 128 buckets per power of two */
#define BUCKETS 8192

static uint32_t bucket_of(uint64_t value) {
    int exponent = value ? 64 - __builtin_clzll(value) - PRECISION_BITS - 1 : 0;
    if (exponent <= 0) return (uint32_t)value;
    return ((uint32_t)exponent << PRECISION_BITS) + (uint32_t)(value >> exponent);
}

struct histogram {
    uint64_t buckets[BUCKETS];
};

static void record(struct histogram *histogram, uint64_t now, uint64_t since) {
    uint64_t us = now > since ? (now - since) / 1000 : 0;
    uint32_t bucket = bucket_of(us);
    histogram->buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

/* ------------------------------------------------------------------------------------------------- data of a run */

struct bytes {
    uint8_t *data;
    size_t used, room;
};

struct template {
    struct bytes bytes;
    int replies;         /* in-order protocols: replies that complete the request */
    int messages;        /* messages that the request sends, or asks for at most */
    size_t number_at;    /* position of the request's number; SIZE_MAX = none */
    size_t *stamps;      /* places of times */
    int stamp_count;
};

enum role { PRODUCE, CONSUME, WALK };
enum state { IDLE, SENDING, RECEIVING, SETTLING, PARKED };
enum kind { SENT, RECEIVED, SETTLED, IGNORED };

/* A queue on the way of the walkers. A walker sends to the queue, receives, deletes, and goes on to the next. */
struct stop {
    struct template send, receive;
    struct bytes settle;
};

struct reply {
    enum kind kind;
    int64_t number;    /* of the request; -1 = replies come in order */
    bool multiple;     /* the reply also answers all earlier requests (AMQP) */
    int count;         /* messages */
    uint64_t stamp;    /* time in the first body, 0 = none */
};

struct connection {
    int fd;
    enum role role;
    enum state state;
    int outstanding;           /* limit of requests under way */
    int under_way;
    int parked_units;          /* requests of a producer that the gate holds back */
    struct template request;   /* a send, or a receive */
    struct bytes settle;       /* the bytes of a delete that come from the harness */
    struct bytes in, out, handles;
    size_t parsed;             /* bytes of `in` that are done */
    bool wants_write;
    uint64_t *starts;          /* start of a request by slot; 0 = free */
    uint32_t *free_slots;
    uint32_t free_count;
    uint64_t head, tail;       /* in-order protocols: next request to be answered, next to be sent */
    int replies_left;          /* replies still to come for the request at `head` */
    int handle_count;
    int unanswered;            /* deletes inside the receive under way */
    uint64_t began;            /* start of the receive */
    uint64_t deliveries_began; /* start of the receive that brought the unanswered deletes */
    uint64_t wake_at;
    int delivery_state;        /* of a protocol whose message comes in several parts */
    uint64_t delivery_tag;
    uint64_t delivery_bytes;
    int stop, first_stop, stride; /* of a walker: the current stop, the first, and the distance to the next */
};

struct protocol {
    const char *name;
    bool is_numbered;     /* replies name their request by its number */
    bool is_tagged;       /* replies name the position of a message in the order of sends, from 1 */
    bool is_pushed;       /* no receive requests: the broker delivers by itself */
    bool is_unconfirmed;  /* deletes have no reply */
    bool is_polled;       /* a receive of an empty queue returns at once: pause before the next */
    /* Read one reply from `data`: return its bytes, 0 while it is incomplete. */
    size_t (*parse)(struct connection *, const uint8_t *data, size_t bytes, struct reply *);
    /* Append a delete of the connection's handles to `out`. */
    void (*settle)(struct connection *);
    void (*number)(uint8_t *target, uint64_t number);
};

static const struct protocol *protocol;
static struct connection *connections;
static int connection_count;
static struct stop *stops;
static int stop_count;
static char queue[256], group[64];
static bool has_consumers;
static bool reports_seconds; /* a line "second" with a report so far, each second of the measured time */
static bool acknowledges; /* cmqd: deletes travel inside the next receive */

static uint64_t warm_up_ns, measure_ns, limit;
static double rate;
static int64_t ahead_limit, ahead, parked;
static uint64_t issued, sent, received, deleted, empty;      /* of the whole run */
static uint64_t unanswered;                                  /* deletes inside receives that are under way */
static uint64_t window_sent, window_received, window_deleted;
static struct histogram latency, late;
static bool is_measuring, is_ending;
static bool records_sends, records_pairs, records_stamps;
static uint64_t now_ns, last_progress;
static int epoll_fd;
static uint64_t wakeups;

static uint64_t monotonic(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (uint64_t)moment.tv_sec * SECOND + (uint64_t)moment.tv_nsec;
}

static void print_json_text(const char *text, size_t bytes) {
    putchar('"');
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)text[i];
        if (byte == '"' || byte == '\\') printf("\\%c", byte);
        else if (byte < 32 || byte > 126) printf("\\u%04x", byte);
        else putchar(byte);
    }
    putchar('"');
}

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (bytes < 0) bytes = 0;
    if ((size_t)bytes >= sizeof text) bytes = sizeof text - 1;
    printf("{\"error\": ");
    print_json_text(text, (size_t)bytes);
    printf("}\n");
    fflush(stdout);
    exit(1);
}

static void *reserve(void *old, size_t bytes) {
    void *memory = realloc(old, bytes);
    if (!memory) fail("no memory for %zu bytes", bytes);
    return memory;
}

static uint8_t *extend(struct bytes *bytes, size_t more) {
    if (bytes->used + more > bytes->room) {
        while (bytes->used + more > bytes->room) bytes->room = bytes->room ? 2 * bytes->room : 4096;
        bytes->data = reserve(bytes->data, bytes->room);
    }
    uint8_t *target = bytes->data + bytes->used;
    bytes->used += more;
    return target;
}

static void append(struct bytes *bytes, const void *data, size_t count) {
    memcpy(extend(bytes, count), data, count);
}

__attribute__((format(printf, 2, 3))) static void append_text(struct bytes *bytes, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int count = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (count < 0 || (size_t)count >= sizeof text) fail("a request is longer than the generator's buffer");
    append(bytes, text, (size_t)count);
}

static const char HEX[] = "0123456789abcdef";

static void write_stamp(uint8_t *target, uint64_t value) {
    for (int digit = STAMP_DIGITS - 1; digit >= 0; digit--, value >>= 4) target[digit] = (uint8_t)HEX[value & 15];
}

static int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
    return -1;
}

/* The time in a body. A body without the mark was not sent by this run. */
static uint64_t read_stamp(const uint8_t *body, size_t bytes) {
    const uint8_t *mark = memmem(body, bytes, MARK, MARK_BYTES);
    if (!mark || mark + MARK_BYTES + STAMP_DIGITS > body + bytes) fail("a received body is not a body of this run");
    uint64_t value = 0;
    for (int i = 0; i < STAMP_DIGITS; i++) {
        int digit = hex_digit(mark[MARK_BYTES + (size_t)i]);
        if (digit < 0) fail("a received body has a damaged time");
        value = value << 4 | (uint64_t)digit;
    }
    return value;
}

static void keep_handle(struct connection *connection, const void *data, size_t bytes) {
    append(&connection->handles, data, bytes);
    connection->handle_count++;
}

static uint16_t big16(const uint8_t *position) { return (uint16_t)(position[0] << 8 | position[1]); }
static uint32_t big32(const uint8_t *position) {
    return (uint32_t)position[0] << 24 | (uint32_t)position[1] << 16 | (uint32_t)position[2] << 8 | position[3];
}
static uint64_t big64(const uint8_t *position) { return (uint64_t)big32(position) << 32 | big32(position + 4); }
static void put32(uint8_t *target, uint32_t value) {
    for (int i = 3; i >= 0; i--, value >>= 8) target[i] = (uint8_t)value;
}
static void put64(uint8_t *target, uint64_t value) {
    for (int i = 7; i >= 0; i--, value >>= 8) target[i] = (uint8_t)value;
}

/* -------------------------------------------------------------------------------------------------- cmqd: msgpack */

struct cursor {
    const uint8_t *position, *end;
};

static const uint8_t *take(struct cursor *cursor, size_t bytes) {
    if ((size_t)(cursor->end - cursor->position) < bytes) fail("cmqd: a reply ends too early");
    const uint8_t *start = cursor->position;
    cursor->position += bytes;
    return start;
}

static uint64_t take_unsigned(struct cursor *cursor) {
    uint8_t head = *take(cursor, 1);
    if (head < 0x80) return head;
    switch (head) {
        case 0xcc: return *take(cursor, 1);
        case 0xcd: return big16(take(cursor, 2));
        case 0xce: return big32(take(cursor, 4));
        case 0xcf: return big64(take(cursor, 8));
        default: fail("cmqd: byte 0x%02x where a reply has a number", head);
    }
}

static uint32_t take_array(struct cursor *cursor) {
    uint8_t head = *take(cursor, 1);
    if ((head & 0xf0) == 0x90) return head & 15;
    if (head == 0xdc) return big16(take(cursor, 2));
    if (head == 0xdd) return big32(take(cursor, 4));
    fail("cmqd: byte 0x%02x where a reply has an array", head);
}

/* Bytes or text. */
static const uint8_t *take_bytes(struct cursor *cursor, size_t *bytes) {
    uint8_t head = *take(cursor, 1);
    if ((head & 0xe0) == 0xa0) *bytes = head & 31;
    else if (head == 0xc4 || head == 0xd9) *bytes = *take(cursor, 1);
    else if (head == 0xc5 || head == 0xda) *bytes = big16(take(cursor, 2));
    else if (head == 0xc6 || head == 0xdb) *bytes = big32(take(cursor, 4));
    else fail("cmqd: byte 0x%02x where a reply has bytes", head);
    return take(cursor, *bytes);
}

static void skip_value(struct cursor *cursor) {
    uint8_t head = *take(cursor, 1);
    uint32_t items = 0;
    if (head < 0x80 || head >= 0xe0 || head == 0xc0 || head == 0xc2 || head == 0xc3) return;
    if ((head & 0xe0) == 0xa0) take(cursor, head & 31);
    else if ((head & 0xf0) == 0x90) items = head & 15;
    else if ((head & 0xf0) == 0x80) items = 2u * (head & 15);
    else switch (head) {
        case 0xc4: case 0xd9: take(cursor, *take(cursor, 1)); break;
        case 0xc5: case 0xda: take(cursor, big16(take(cursor, 2))); break;
        case 0xc6: case 0xdb: take(cursor, big32(take(cursor, 4))); break;
        case 0xcc: case 0xd0: take(cursor, 1); break;
        case 0xcd: case 0xd1: take(cursor, 2); break;
        case 0xce: case 0xd2: case 0xca: take(cursor, 4); break;
        case 0xcf: case 0xd3: case 0xcb: take(cursor, 8); break;
        case 0xdc: items = big16(take(cursor, 2)); break;
        case 0xdd: items = big32(take(cursor, 4)); break;
        case 0xde: items = 2u * big16(take(cursor, 2)); break;
        case 0xdf: items = 2u * big32(take(cursor, 4)); break;
        default: fail("cmqd: byte 0x%02x in a reply", head);
    }
    while (items--) skip_value(cursor);
}

enum { CMQD_SENT = 193, CMQD_RECEIVED = 194, CMQD_HANDLES_DONE = 195, CMQD_PUBLISHED = 206, CMQD_ERROR = 255 };

static size_t cmqd_parse(struct connection *connection, const uint8_t *data, size_t bytes, struct reply *reply) {
    if (bytes < 4) return 0;
    size_t payload = big32(data);
    if (bytes < 4 + payload) return 0;
    reply->kind = IGNORED;
    if (!payload) return 4; /* a heartbeat */
    struct cursor cursor = {data + 4, data + 4 + payload};
    uint32_t fields = take_array(&cursor);
    uint64_t opcode = take_unsigned(&cursor);
    reply->number = (int64_t)take_unsigned(&cursor);
    if (opcode == CMQD_SENT || opcode == CMQD_PUBLISHED) {
        reply->kind = SENT;
        reply->count = (int)take_array(&cursor);
    } else if (opcode == CMQD_RECEIVED) {
        reply->kind = RECEIVED;
        reply->count = (int)take_array(&cursor);
        for (int i = 0; i < reply->count; i++) {
            uint32_t message_fields = take_array(&cursor);
            size_t body_bytes;
            take_unsigned(&cursor);
            uint64_t handle = take_unsigned(&cursor);
            const uint8_t *body = take_bytes(&cursor, &body_bytes);
            for (uint32_t field = 3; field < message_fields; field++) skip_value(&cursor);
            keep_handle(connection, &handle, sizeof handle);
            uint64_t stamp = read_stamp(body, body_bytes);
            if (!i) reply->stamp = stamp;
        }
        /* Failed deletes inside the receive: an empty list, or null where the request had none. */
        bool has_failures = fields > 3 && *cursor.position != 0xc0 && take_array(&cursor);
        if (has_failures) fail("cmqd: a delete inside a receive failed");
    } else if (opcode == CMQD_HANDLES_DONE) {
        reply->kind = SETTLED;
        if (take_array(&cursor)) fail("cmqd: a delete failed");
    } else if (opcode == CMQD_ERROR) {
        size_t name_bytes, text_bytes;
        take_unsigned(&cursor);
        const uint8_t *name = take_bytes(&cursor, &name_bytes);
        const uint8_t *text = take_bytes(&cursor, &text_bytes);
        fail("cmqd: %.*s: %.*s", (int)name_bytes, (const char *)name, (int)text_bytes, (const char *)text);
    } else {
        fail("cmqd: a reply of kind %llu", (unsigned long long)opcode);
    }
    return 4 + payload;
}

static void cmqd_append_handles(struct bytes *out, const struct connection *connection) {
    uint8_t head[3] = {0xdc, (uint8_t)(connection->handle_count >> 8), (uint8_t)connection->handle_count};
    if (connection->handle_count < 16) {
        head[0] = (uint8_t)(0x90 | connection->handle_count);
        append(out, head, 1);
    } else {
        append(out, head, 3);
    }
    const uint64_t *handles = (const uint64_t *)(const void *)connection->handles.data;
    for (int i = 0; i < connection->handle_count; i++) {
        uint8_t number[9];
        if (handles[i] <= UINT32_MAX) {
            number[0] = 0xce;
            put32(number + 1, (uint32_t)handles[i]);
            append(out, number, 5);
        } else {
            number[0] = 0xcf;
            put64(number + 1, handles[i]);
            append(out, number, 9);
        }
    }
}

/* The template is the payload of a request without its last field, the list of handles. */
static void cmqd_settle(struct connection *connection) {
    struct bytes *out = &connection->out;
    size_t start = out->used;
    extend(out, 4);
    append(out, connection->settle.data, connection->settle.used);
    cmqd_append_handles(out, connection);
    put32(out->data + start, (uint32_t)(out->used - start - 4));
}

static void cmqd_number(uint8_t *target, uint64_t number) {
    target[0] = (uint8_t)(number >> 8);
    target[1] = (uint8_t)number;
}

/* ---------------------------------------------------------------------------------------------------- Redis: RESP */

/* A line of RESP after its first byte: the number in the line, and the bytes with the line's end; 0 = incomplete. */
static size_t resp_number(const uint8_t *data, size_t bytes, int64_t *number) {
    const uint8_t *end = memchr(data, '\n', bytes);
    if (!end) return 0;
    *number = strtoll((const char *)data + 1, NULL, 10);
    return (size_t)(end - data) + 1;
}

/* The bytes of a whole value; 0 while it is incomplete. */
static size_t resp_bytes(const uint8_t *data, size_t bytes) {
    int64_t number = 0;
    if (!bytes) return 0;
    size_t done = resp_number(data, bytes, &number);
    if (!done) return 0;
    switch (data[0]) {
        case '+': case '-': case ':': return done;
        case '$':
            if (number < 0) return done;
            return done + (size_t)number + 2 <= bytes ? done + (size_t)number + 2 : 0;
        case '*':
            for (int64_t item = 0; item < number; item++) {
                size_t more = resp_bytes(data + done, bytes - done);
                if (!more) return 0;
                done += more;
            }
            return done;
        default: fail("Redis: byte 0x%02x at the start of a reply", data[0]);
    }
}

/* Step into an array that is complete. */
static const uint8_t *resp_enter(const uint8_t *position, int64_t *items) {
    if (*position != '*') fail("Redis: a reply to XREADGROUP has another shape");
    return position + resp_number(position, SIZE_MAX / 2, items);
}

static const uint8_t *resp_text(const uint8_t *position, const uint8_t **text, size_t *bytes) {
    int64_t number = 0;
    if (*position != '$') fail("Redis: a reply to XREADGROUP has another shape");
    *text = position + resp_number(position, SIZE_MAX / 2, &number);
    *bytes = (size_t)number;
    return *text + number + 2;
}

static size_t redis_parse(struct connection *connection, const uint8_t *data, size_t bytes, struct reply *reply) {
    size_t whole = resp_bytes(data, bytes);
    if (!whole) return 0;
    if (data[0] == '-') fail("Redis: %.*s", (int)(whole > 2 ? whole - 3 : 0), (const char *)data + 1);
    reply->number = -1;
    if (connection->role == PRODUCE) {
        if (data[0] != '$') fail("Redis: a reply to XADD without an id");
        reply->kind = SENT;
        reply->count = 1;
        return whole;
    }
    if (connection->state == SETTLING) {
        int64_t done = 0;
        resp_number(data, whole, &done);
        if (data[0] != ':' || done != connection->handle_count) fail("Redis: XACK or XDEL did not meet all messages");
        /* two replies: of XACK, then of XDEL */
        reply->kind = connection->delivery_state++ ? SETTLED : IGNORED;
        if (reply->kind == SETTLED) connection->delivery_state = 0;
        return whole;
    }
    reply->kind = RECEIVED;
    int64_t streams = 0, parts = 0, messages = 0, fields = 0;
    const uint8_t *position = resp_enter(data, &streams), *text;
    size_t text_bytes;
    if (streams <= 0) return whole; /* the wait ended */
    position = resp_enter(position, &parts);
    position = resp_text(position, &text, &text_bytes);
    position = resp_enter(position, &messages);
    reply->count = (int)messages;
    for (int64_t i = 0; i < messages; i++) {
        position = resp_enter(position, &parts);
        position = resp_text(position, &text, &text_bytes);
        uint16_t id_bytes = (uint16_t)text_bytes;
        append(&connection->handles, &id_bytes, sizeof id_bytes);
        keep_handle(connection, text, text_bytes);
        position = resp_enter(position, &fields);
        for (int64_t field = 0; field < fields; field++) position = resp_text(position, &text, &text_bytes);
        uint64_t stamp = read_stamp(text, text_bytes);
        if (!i) reply->stamp = stamp;
    }
    return whole;
}

static void redis_append_ids(struct connection *connection) {
    const uint8_t *position = connection->handles.data;
    for (int i = 0; i < connection->handle_count; i++) {
        uint16_t bytes;
        memcpy(&bytes, position, sizeof bytes);
        append_text(&connection->out, "$%u\r\n%.*s\r\n", bytes, (int)bytes, (const char *)position + sizeof bytes);
        position += sizeof bytes + bytes;
    }
}

static void redis_settle(struct connection *connection) {
    append_text(&connection->out, "*%d\r\n$4\r\nXACK\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", connection->handle_count + 3,
                strlen(queue), queue, strlen(group), group);
    redis_append_ids(connection);
    append_text(&connection->out, "*%d\r\n$4\r\nXDEL\r\n$%zu\r\n%s\r\n", connection->handle_count + 2, strlen(queue),
                queue);
    redis_append_ids(connection);
}

/* ------------------------------------------------------------------------------- PostgreSQL: protocol version 3 */

/*
 * A queue is a table. A receive leases rows (`update ... skip locked ... returning id, body`), a delete removes them by
 * their ids: two commits. A reply is everything up to "ready for query".
 *
 * The delete binds an array of ids to the prepared statement `done`. The template is the rest of the write: execute,
 * sync.
 */
static void postgres_settle(struct connection *connection) {
    static const uint8_t BIND[] = {0, 'd', 'o', 'n', 'e', 0, 0, 1, 0, 1, 0, 1};
    static const uint8_t RESULTS[] = {0, 1, 0, 1};
    const uint32_t INT8 = 20;
    struct bytes *out = &connection->out;
    uint32_t count = (uint32_t)connection->handle_count, array_bytes = 20 + 12 * count;
    *extend(out, 1) = 'B';
    put32(extend(out, 4), (uint32_t)(4 + sizeof BIND + 4 + array_bytes + sizeof RESULTS));
    append(out, BIND, sizeof BIND);
    /* bytes of the array, dimensions, has nulls, type of the items, items, number of the first item */
    const uint32_t head[] = {array_bytes, 1, 0, INT8, count, 1};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) put32(extend(out, 4), head[i]);
    for (uint32_t i = 0; i < count; i++) {
        put32(extend(out, 4), 8);
        append(out, connection->handles.data + 8 * i, 8);
    }
    append(out, RESULTS, sizeof RESULTS);
    append(out, connection->settle.data, connection->settle.used);
}

static const char *postgres_error(const uint8_t *fields, size_t bytes) {
    for (size_t position = 0; position < bytes && fields[position];) {
        if (fields[position] == 'M') return (const char *)fields + position + 1;
        position += 2 + strnlen((const char *)fields + position + 1, bytes - position - 1);
    }
    return "an error without a text";
}

static size_t postgres_parse(struct connection *connection, const uint8_t *data, size_t bytes, struct reply *reply) {
    size_t position = 0;
    bool is_ready = false;
    while (!is_ready) {
        if (bytes - position < 5) return 0;
        size_t length = big32(data + position + 1);
        if (bytes - position < 1 + length) return 0;
        if (data[position] == 'E') fail("PostgreSQL: %s", postgres_error(data + position + 5, length - 4));
        is_ready = data[position] == 'Z';
        position += 1 + length;
    }
    size_t whole = position;
    reply->number = -1;
    reply->kind = connection->role == PRODUCE ? SENT : connection->state == SETTLING ? SETTLED : RECEIVED;
    for (position = 0; position < whole; position += 1 + big32(data + position + 1)) {
        const uint8_t *payload = data + position + 5;
        if (data[position] == 'D') {
            /* columns, bytes of the id, the id, bytes of the body, the body */
            if (big16(payload) != 2 || big32(payload + 2) != 8) fail("PostgreSQL: a row of another shape");
            size_t body_bytes = big32(payload + 14);
            uint64_t stamp = read_stamp(payload + 18, body_bytes);
            if (!reply->count++) reply->stamp = stamp;
            keep_handle(connection, payload + 6, 8);
        } else if (data[position] == 'C' && reply->kind != RECEIVED) {
            int done = 0, expected = reply->kind == SENT ? connection->request.messages : connection->handle_count;
            const char *form = reply->kind == SENT ? "INSERT 0 %d" : "DELETE %d";
            if (sscanf((const char *)payload, form, &done) != 1 || done != expected)
                fail("PostgreSQL: %s in place of %d rows", (const char *)payload, expected);
        }
    }
    return whole;
}

/* --------------------------------------------------------------------------------------------- RabbitMQ: AMQP 0-9-1 */

#define METHOD(class, method) ((uint32_t)(class) << 16 | (method))

enum { AMQP_METHOD = 1, AMQP_HEADER = 2, AMQP_BODY = 3, AMQP_FRAME_END = 0xce };

static size_t amqp_parse(struct connection *connection, const uint8_t *data, size_t bytes, struct reply *reply) {
    if (bytes < 8) return 0;
    size_t payload_bytes = big32(data + 3), whole = payload_bytes + 8;
    if (bytes < whole) return 0;
    const uint8_t *payload = data + 7;
    if (data[whole - 1] != AMQP_FRAME_END) fail("RabbitMQ: a frame without its end");
    reply->kind = IGNORED;
    if (data[0] == AMQP_METHOD) {
        switch (big32(payload)) {
            case METHOD(60, 80): /* basic.ack: a confirm */
                reply->kind = SENT;
                reply->number = (int64_t)big64(payload + 4);
                reply->multiple = payload[12] & 1;
                break;
            case METHOD(60, 60): /* basic.deliver */
                connection->delivery_tag = big64(payload + 5 + payload[4]);
                break;
            case METHOD(60, 120): fail("RabbitMQ: a message was not confirmed (basic.nack)");
            case METHOD(10, 50):
            case METHOD(20, 40): fail("RabbitMQ: %.*s", payload[6], (const char *)payload + 7);
            case METHOD(10, 60): fail("RabbitMQ blocked a connection: %.*s", payload[4], (const char *)payload + 5);
            default: fail("RabbitMQ: an unexpected method %u of class %u", big16(payload + 2), big16(payload));
        }
    } else if (data[0] == AMQP_HEADER) {
        connection->delivery_bytes = big64(payload + 4);
    } else if (data[0] == AMQP_BODY) {
        if (connection->delivery_bytes != payload_bytes) fail("RabbitMQ: a body in several frames");
        reply->kind = RECEIVED;
        reply->count = 1;
        reply->stamp = read_stamp(payload, payload_bytes);
        keep_handle(connection, &connection->delivery_tag, sizeof connection->delivery_tag);
    }
    return whole;
}

static void amqp_settle(struct connection *connection) {
    uint8_t frame[] = {AMQP_METHOD, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, AMQP_FRAME_END};
    put64(frame + 11, connection->delivery_tag);
    append(&connection->out, frame, sizeof frame);
}

/* -------------------------------------------------------------------------------------------------- NATS JetStream */

/* Subscriptions of a connection: answers to publishes, messages, answers to acknowledgements. */
enum { NATS_PUBLISHED = 1, NATS_MESSAGES = 2, NATS_SETTLED = 3 };

static size_t nats_parse(struct connection *connection, const uint8_t *data, size_t bytes, struct reply *reply) {
    const uint8_t *end = memchr(data, '\n', bytes);
    if (!end) return 0;
    size_t line_bytes = (size_t)(end - data) + 1;
    reply->kind = IGNORED;
    if (data[0] == '+' || data[0] == 'I' || !memcmp(data, "PO", 2)) return line_bytes;
    if (data[0] == '-') fail("NATS: %.*s", (int)line_bytes - 2, (const char *)data);
    if (!memcmp(data, "PI", 2)) {
        append_text(&connection->out, "PONG\r\n");
        return line_bytes;
    }
    char line[512], *word[6], *rest = NULL;
    int words = 0;
    if (line_bytes >= sizeof line) fail("NATS: a line of %zu bytes", line_bytes);
    memcpy(line, data, line_bytes);
    line[line_bytes] = 0;
    for (char *next = strtok_r(line, " \r\n", &rest); next && words < 6; next = strtok_r(NULL, " \r\n", &rest))
        word[words++] = next;
    bool has_headers = words && !strcmp(word[0], "HMSG");
    if (words < 4 + has_headers || (!has_headers && strcmp(word[0], "MSG")))
        fail("NATS: an unexpected line: %.*s", (int)line_bytes - 1, (const char *)data);
    size_t payload_bytes = strtoull(word[words - 1], NULL, 10);
    if (bytes < line_bytes + payload_bytes + 2) return 0;
    const uint8_t *payload = data + line_bytes;
    bool has_reply = words == 5 + has_headers;
    switch (atoi(word[2])) {
        case NATS_PUBLISHED:
            if (has_headers || memmem(payload, payload_bytes, "\"error\"", 7))
                fail("NATS: %.*s", (int)payload_bytes, (const char *)payload);
            reply->kind = SENT;
            reply->number = atoll(strrchr(word[1], '.') + 1);
            reply->count = 1;
            break;
        case NATS_MESSAGES:
            reply->kind = RECEIVED;
            if (!has_reply) {
                /* a status: the pull ended (408 with its wait, 404 and 409 for other reasons) */
                if (!memmem(payload, payload_bytes, "NATS/1.0 40", 11)) fail("NATS: an unexpected status");
                break;
            }
            reply->count = 1;
            reply->stamp = read_stamp(payload, payload_bytes);
            keep_handle(connection, word[3], strlen(word[3]));
            break;
        case NATS_SETTLED:
            if (has_headers) fail("NATS: an acknowledgement was refused");
            reply->kind = SETTLED;
            break;
        default: fail("NATS: a message of an unknown subscription: %s", word[2]);
    }
    return line_bytes + payload_bytes + 2;
}

static void nats_settle(struct connection *connection) {
    append(&connection->out, "PUB ", 4);
    append(&connection->out, connection->handles.data, connection->handles.used);
    append(&connection->out, connection->settle.data, connection->settle.used);
}

static void nats_number(uint8_t *target, uint64_t number) {
    for (int digit = 3; digit >= 0; digit--, number /= 10) target[digit] = (uint8_t)('0' + number % 10);
}

/* ------------------------------------------------------------------------------------------------------ protocols */

static const struct protocol PROTOCOLS[] = {
    {.name = "cmqd", .is_numbered = true, .parse = cmqd_parse, .settle = cmqd_settle, .number = cmqd_number},
    {.name = "redis", .parse = redis_parse, .settle = redis_settle},
    {.name = "postgres", .is_polled = true, .parse = postgres_parse, .settle = postgres_settle},
    {.name = "amqp",
     .is_tagged = true,
     .is_pushed = true,
     .is_unconfirmed = true,
     .parse = amqp_parse,
     .settle = amqp_settle},
    {.name = "nats", .is_numbered = true, .parse = nats_parse, .settle = nats_settle, .number = nats_number},
};

/* ------------------------------------------------------------------------------------------------------- the load */

static void flush_out(struct connection *connection) {
    struct bytes *out = &connection->out;
    size_t written = 0;
    while (written < out->used) {
        ssize_t bytes = write(connection->fd, out->data + written, out->used - written);
        if (bytes > 0) {
            written += (size_t)bytes;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            fail("the broker closed a connection of the load: %s", strerror(errno));
        }
    }
    if (written) {
        memmove(out->data, out->data + written, out->used - written);
        out->used -= written;
    }
    bool wants_write = out->used > 0;
    if (wants_write != connection->wants_write) {
        struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = connection};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
        connection->wants_write = wants_write;
    }
}

static void append_request(struct connection *connection, uint64_t stamp, uint64_t number) {
    struct template *request = &connection->request;
    uint8_t *target = extend(&connection->out, request->bytes.used);
    memcpy(target, request->bytes.data, request->bytes.used);
    for (int i = 0; i < request->stamp_count; i++) write_stamp(target + request->stamps[i], stamp);
    if (request->number_at != SIZE_MAX) protocol->number(target + request->number_at, number);
}

/* Send one request of a producer. `stamp` is the time from which its latency counts. */
static void issue_send(struct connection *connection, uint64_t stamp) {
    uint64_t slot;
    if (protocol->is_numbered) {
        slot = connection->free_slots[--connection->free_count];
    } else if (protocol->is_tagged) {
        slot = ++connection->tail % TAG_SLOTS;
        if (connection->starts[slot]) fail("a confirm is missing for %d later messages", TAG_SLOTS);
    } else {
        slot = connection->tail++ % (uint64_t)connection->outstanding;
        if (!connection->under_way) connection->replies_left = connection->request.replies;
    }
    connection->starts[slot] = stamp;
    connection->under_way++;
    issued += (uint64_t)connection->request.messages;
    append_request(connection, stamp, slot + FIRST_ID);
}

static bool may_send(void) {
    return !is_ending && (!limit || issued < limit);
}

static void send_or_park(struct connection *connection) {
    if (ahead_limit && ahead >= ahead_limit) {
        connection->parked_units++;
        parked++;
    } else {
        issue_send(connection, now_ns);
    }
}

static void complete_send(struct connection *connection, uint64_t slot) {
    if (is_measuring && records_sends) record(&latency, now_ns, connection->starts[slot]);
    connection->starts[slot] = 0;
    if (protocol->is_numbered) connection->free_slots[connection->free_count++] = (uint32_t)slot;
    connection->under_way--;
    int messages = connection->request.messages;
    sent += (uint64_t)messages;
    ahead += messages;
    if (is_measuring) window_sent += (uint64_t)messages;
    if (rate == 0 && may_send()) send_or_park(connection);
}

static void issue_receive(struct connection *connection) {
    connection->state = RECEIVING;
    /* The latency of a walker counts from its send. */
    if (connection->role != WALK) connection->began = now_ns;
    connection->handles.used = 0;
    connection->handle_count = 0;
    if (!protocol->is_pushed) append_request(connection, 0, FIRST_ID);
}

/* Send to the next stop. */
static void walk_on(struct connection *connection) {
    connection->stop += connection->stride;
    if (connection->stop >= stop_count) connection->stop = connection->first_stop;
    const struct stop *stop = &stops[connection->stop];
    connection->request = stop->send;
    connection->settle = stop->settle;
    connection->state = SENDING;
    connection->began = now_ns;
    append_request(connection, now_ns, FIRST_ID);
}

static void on_walker_sent(struct connection *connection, const struct reply *reply) {
    if (connection->state != SENDING) fail("a reply to nothing");
    if (reply->count != connection->request.messages)
        fail("a send of %d messages was answered for %d", connection->request.messages, reply->count);
    sent += (uint64_t)reply->count;
    if (is_measuring) window_sent += (uint64_t)reply->count;
    connection->request = stops[connection->stop].receive;
    issue_receive(connection);
}

static void on_sent(struct connection *connection, const struct reply *reply) {
    if (connection->role == WALK) {
        on_walker_sent(connection, reply);
    } else if (protocol->is_numbered) {
        uint64_t slot = (uint64_t)(reply->number - FIRST_ID);
        if (reply->number < FIRST_ID || slot >= (uint64_t)connection->outstanding || !connection->starts[slot])
            fail("a reply to request %lld, which was not sent", (long long)reply->number);
        if (reply->count != connection->request.messages)
            fail("a send of %d messages was answered for %d", connection->request.messages, reply->count);
        complete_send(connection, slot);
    } else if (protocol->is_tagged) {
        uint64_t tag = (uint64_t)reply->number, last = connection->tail;
        if (tag <= connection->head || tag > last || !connection->starts[tag % TAG_SLOTS])
            fail("a confirm of message %llu, which was not sent", (unsigned long long)tag);
        for (uint64_t each = reply->multiple ? connection->head + 1 : tag; each <= tag; each++)
            if (connection->starts[each % TAG_SLOTS]) complete_send(connection, each % TAG_SLOTS);
        while (connection->head < last && !connection->starts[(connection->head + 1) % TAG_SLOTS]) connection->head++;
    } else {
        if (!connection->under_way) fail("a reply to nothing");
        if (--connection->replies_left) return;
        connection->replies_left = connection->request.replies;
        complete_send(connection, connection->head++ % (uint64_t)connection->outstanding);
    }
}

static void release_parked(void) {
    if (!parked || ahead > ahead_limit / 2) return;
    for (int i = 0; i < connection_count; i++) {
        struct connection *producer = &connections[i];
        if (!producer->parked_units) continue;
        while (producer->parked_units && may_send()) {
            producer->parked_units--;
            parked--;
            issue_send(producer, now_ns);
        }
        flush_out(producer);
    }
}

static void count_deleted(int count, uint64_t began) {
    deleted += (uint64_t)count;
    ahead -= count;
    if (is_measuring) {
        window_deleted += (uint64_t)count;
        if (records_pairs) record(&latency, now_ns, began);
    }
    release_parked();
}

static void on_received(struct connection *connection, const struct reply *reply) {
    if (protocol->is_pushed && is_ending) { /* the broker takes the message back when the connection ends */
        connection->state = IDLE;
        return;
    }
    if (connection->state != RECEIVING) fail("a message came without a receive");
    if (connection->unanswered) {
        int count = connection->unanswered;
        connection->unanswered = 0;
        unanswered -= (uint64_t)count;
        count_deleted(count, connection->deliveries_began);
    }
    if (!reply->count) {
        empty++;
        if (is_ending) {
            connection->state = IDLE;
        } else if (protocol->is_polled) {
            connection->state = PARKED;
            connection->wake_at = now_ns + PARK_NS;
        } else {
            issue_receive(connection);
        }
        return;
    }
    if (reply->count > connection->request.messages)
        fail("%d messages came, %d were asked for", reply->count, connection->request.messages);
    received += (uint64_t)reply->count;
    if (is_measuring) {
        window_received += (uint64_t)reply->count;
        if (records_stamps) record(&latency, now_ns, reply->stamp);
    }
    if (acknowledges) {
        if (is_ending) {
            connection->state = IDLE; /* the messages stay received and are counted as left */
            return;
        }
        protocol->settle(connection);
        connection->unanswered = connection->handle_count;
        unanswered += (uint64_t)connection->handle_count;
        connection->deliveries_began = connection->began;
        connection->began = now_ns;
        connection->handles.used = 0;
        connection->handle_count = 0;
        return;
    }
    connection->state = SETTLING;
    protocol->settle(connection);
    if (protocol->is_unconfirmed) {
        count_deleted(connection->handle_count, connection->began);
        if (is_ending) connection->state = IDLE;
        else issue_receive(connection);
    }
}

static void on_settled(struct connection *connection) {
    if (connection->state != SETTLING) fail("an answer to a delete that was not sent");
    count_deleted(connection->handle_count, connection->began);
    if (is_ending || (limit && deleted >= limit)) connection->state = IDLE;
    else if (connection->role == WALK) walk_on(connection);
    else issue_receive(connection);
}

static void on_reply(struct connection *connection, const struct reply *reply) {
    last_progress = now_ns;
    switch (reply->kind) {
        case SENT: on_sent(connection, reply); break;
        case RECEIVED: on_received(connection, reply); break;
        case SETTLED: on_settled(connection); break;
        case IGNORED: break;
    }
}

static void read_replies(struct connection *connection) {
    struct bytes *in = &connection->in;
    if (in->room - in->used < 32768) {
        extend(in, 65536);
        in->used -= 65536;
    }
    ssize_t bytes = read(connection->fd, in->data + in->used, in->room - in->used);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes <= 0) fail("the broker closed a connection of the load");
    in->used += (size_t)bytes;
    size_t done = 0;
    while (done < in->used) {
        struct reply reply = {.kind = IGNORED, .number = -1};
        /* An incomplete reply may have left handles of its first messages. */
        size_t handle_bytes = connection->handles.used;
        int handle_count = connection->handle_count;
        size_t used = protocol->parse(connection, in->data + done, in->used - done, &reply);
        if (!used) {
            connection->handles.used = handle_bytes;
            connection->handle_count = handle_count;
            break;
        }
        done += used;
        on_reply(connection, &reply);
    }
    memmove(in->data, in->data + done, in->used - done);
    in->used -= done;
    if (connection->out.used) flush_out(connection);
}

/* ------------------------------------------------------------------------------------------------- job and report */

static void read_hex(struct bytes *bytes, const char *text) {
    for (; text[0] && text[1]; text += 2) {
        int high = hex_digit((uint8_t)text[0]), low = hex_digit((uint8_t)text[1]);
        if (high < 0 || low < 0) fail("the job has a template that is not hexadecimal");
        *extend(bytes, 1) = (uint8_t)(high << 4 | low);
    }
}

static struct template read_template(char *text) {
    struct template result = {.number_at = SIZE_MAX};
    char *rest = NULL;
    long long number_at;
    result.messages = atoi(strtok_r(text, " ", &rest));
    result.replies = atoi(strtok_r(NULL, " ", &rest));
    number_at = atoll(strtok_r(NULL, " ", &rest));
    if (number_at >= 0) result.number_at = (size_t)number_at;
    result.stamp_count = atoi(strtok_r(NULL, " ", &rest));
    result.stamps = reserve(NULL, (size_t)(result.stamp_count + 1) * sizeof *result.stamps);
    for (int i = 0; i < result.stamp_count; i++) result.stamps[i] = (size_t)atoll(strtok_r(NULL, " ", &rest));
    read_hex(&result.bytes, strtok_r(NULL, " ", &rest));
    return result;
}

static void add_stop(const struct template *send, const struct template *receive, const struct bytes *settle) {
    stops = reserve(stops, (size_t)(stop_count + 1) * sizeof *stops);
    stops[stop_count++] = (struct stop){*send, *receive, *settle};
}

/* A connection uses the request and the delete that were read last; a walker uses the stops. */
static void add_connection(char *text, const struct template *request, const struct bytes *settle) {
    char *rest = NULL;
    if (!protocol) fail("the job has a connection before its protocol");
    connections = reserve(connections, (size_t)(connection_count + 1) * sizeof *connections);
    struct connection *connection = &connections[connection_count++];
    memset(connection, 0, sizeof *connection);
    connection->fd = atoi(strtok_r(text, " ", &rest));
    const char *role = strtok_r(NULL, " ", &rest);
    has_consumers |= !strcmp(role, "consume");
    connection->role = !strcmp(role, "produce") ? PRODUCE : !strcmp(role, "consume") ? CONSUME : WALK;
    if (connection->role == WALK) {
        connection->stop = connection->first_stop = atoi(strtok_r(NULL, " ", &rest));
        connection->stride = atoi(strtok_r(NULL, " ", &rest));
        if (connection->first_stop >= stop_count) fail("a walker has no stop %d", connection->first_stop);
        return;
    }
    connection->outstanding = atoi(strtok_r(NULL, " ", &rest));
    connection->request = *request;
    connection->settle = *settle;
    /* Tagged replies may leave a gap for a while: the ring is wide. */
    size_t slots = protocol->is_tagged ? TAG_SLOTS : (size_t)connection->outstanding;
    if (slots < 1 || slots > MAX_ID - FIRST_ID) fail("%zu outstanding requests are not possible", slots);
    connection->starts = reserve(NULL, slots * sizeof *connection->starts);
    memset(connection->starts, 0, slots * sizeof *connection->starts);
    connection->free_slots = reserve(NULL, slots * sizeof *connection->free_slots);
    for (size_t slot = slots; slot-- > 0;) connection->free_slots[connection->free_count++] = (uint32_t)slot;
}

static void read_job(void) {
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    struct template request = {.number_at = SIZE_MAX}, send = request;
    struct bytes settle = {0};
    while ((bytes = getline(&line, &room, stdin)) > 0) {
        if (line[bytes - 1] == '\n') line[bytes - 1] = 0;
        char *value = strchr(line, ' ');
        if (!value) fail("a line of the job has no value: %s", line);
        *value++ = 0;
        if (!strcmp(line, "protocol")) {
            for (size_t i = 0; i < sizeof PROTOCOLS / sizeof *PROTOCOLS; i++)
                if (!strcmp(PROTOCOLS[i].name, value)) protocol = &PROTOCOLS[i];
            if (!protocol) fail("no protocol is called %s", value);
        } else if (!strcmp(line, "queue")) snprintf(queue, sizeof queue, "%s", value);
        else if (!strcmp(line, "group")) snprintf(group, sizeof group, "%s", value);
        else if (!strcmp(line, "warm_up_ms")) warm_up_ns = strtoull(value, NULL, 10) * 1000000;
        else if (!strcmp(line, "measure_ms")) measure_ns = strtoull(value, NULL, 10) * 1000000;
        else if (!strcmp(line, "rate")) rate = atof(value);
        else if (!strcmp(line, "limit")) limit = strtoull(value, NULL, 10);
        else if (!strcmp(line, "ahead")) ahead_limit = atoll(value);
        else if (!strcmp(line, "acknowledges")) acknowledges = atoi(value);
        else if (!strcmp(line, "reports_seconds")) reports_seconds = atoi(value);
        else if (!strcmp(line, "records")) {
            records_sends = !strcmp(value, "sends");
            records_pairs = !strcmp(value, "pairs");
            records_stamps = !strcmp(value, "stamps");
        } else if (!strcmp(line, "settle")) {
            settle = (struct bytes){0};
            read_hex(&settle, value);
        }
        else if (!strcmp(line, "request")) request = read_template(value);
        else if (!strcmp(line, "send")) send = read_template(value);
        else if (!strcmp(line, "stop")) add_stop(&send, &request, &settle);
        else if (!strcmp(line, "connection")) add_connection(value, &request, &settle);
        else fail("the job has an unknown line: %s", line);
    }
    free(line);
    if (!connection_count) fail("the job has no connection");
}

static uint64_t own_cpu_ns(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * SECOND +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

static void print_buckets(const char *name, const struct histogram *histogram) {
    printf(", \"%s\": [", name);
    const char *separator = "";
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++) {
        if (!histogram->buckets[bucket]) continue;
        printf("%s[%u, %llu]", separator, bucket, (unsigned long long)histogram->buckets[bucket]);
        separator = ", ";
    }
    printf("]");
}

static void print_report(uint64_t time_ns, uint64_t cpu_ns) {
    printf("{\"seconds\": %.6f, \"sent\": %llu, \"received\": %llu, \"deleted\": %llu, \"empty\": %llu",
           (double)time_ns / SECOND, (unsigned long long)window_sent, (unsigned long long)window_received,
           (unsigned long long)window_deleted, (unsigned long long)empty);
    printf(", \"total_sent\": %llu, \"total_received\": %llu, \"total_deleted\": %llu, \"cpu_seconds\": %.6f",
           (unsigned long long)sent, (unsigned long long)received, (unsigned long long)deleted,
           (double)cpu_ns / SECOND);
    printf(", \"wakeups\": %llu, \"unanswered\": %llu", (unsigned long long)wakeups,
           (unsigned long long)unanswered);
    print_buckets("latency", &latency);
    print_buckets("late", &late);
    printf("}\n");
    fflush(stdout);
}

static bool is_quiet(void) {
    for (int i = 0; i < connection_count; i++)
        if (connections[i].under_way || connections[i].state == SENDING || connections[i].state == SETTLING)
            return false;
    return true;
}

static void tell(const char *line) {
    puts(line);
    fflush(stdout);
}

static void start_load(void) {
    for (int i = 0; i < connection_count; i++) {
        struct connection *connection = &connections[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event)) fail("epoll: %s", strerror(errno));
        if (connection->role == CONSUME) {
            issue_receive(connection);
        } else if (connection->role == WALK) {
            /* The step to the first stop is no step. */
            connection->stop -= connection->stride;
            walk_on(connection);
        } else if (rate == 0) {
            for (int unit = 0; unit < connection->outstanding && may_send(); unit++) send_or_park(connection);
        }
        flush_out(connection);
    }
}

/* Send the requests of an open loop that are due; return the time of the next. If the broker is behind by all requests
   of all connections, the next leaves with a reply, and no time is awaited: `is_saturated`. */
static bool is_saturated;

static uint64_t send_due(uint64_t next, uint64_t interval) {
    static int turn;
    is_saturated = true;
    while (next <= now_ns && may_send()) {
        struct connection *producer = NULL;
        for (int tries = 0; tries < connection_count && !producer; tries++) {
            struct connection *candidate = &connections[turn++ % connection_count];
            if (candidate->role == PRODUCE && candidate->under_way < candidate->outstanding) producer = candidate;
        }
        if (!producer) return next;
        if (is_measuring) record(&late, now_ns, next);
        issue_send(producer, next);
        flush_out(producer);
        next += interval;
    }
    is_saturated = !may_send();
    return next;
}

static uint64_t wake_parked(void) {
    uint64_t next = NEVER;
    for (int i = 0; i < connection_count; i++) {
        struct connection *connection = &connections[i];
        if (connection->state != PARKED) continue;
        if (is_ending) {
            connection->state = IDLE;
        } else if (connection->wake_at <= now_ns) {
            issue_receive(connection);
            flush_out(connection);
        } else if (connection->wake_at < next) {
            next = connection->wake_at;
        }
    }
    return next;
}

/* Wait up to `wait` nanoseconds. A closed loop only waits for the ends of its times, so a millisecond is exact enough,
   and one system call is spared. */
static int await_events(struct epoll_event *events, uint64_t wait) {
    int wait_ms = (int)((wait + 999999) / 1000000);
    if (rate == 0 && !protocol->is_polled) return epoll_wait(epoll_fd, events, EVENTS, wait_ms);
    struct timespec timeout = {(time_t)(wait / SECOND), (long)(wait % SECOND)};
    struct pollfd poll_epoll = {.fd = epoll_fd, .events = POLLIN};
    if (wait && ppoll(&poll_epoll, 1, &timeout, NULL) <= 0) return 0;
    return epoll_wait(epoll_fd, events, EVENTS, 0);
}

int main(void) {
    read_job();
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    prctl(PR_SET_TIMERSLACK, 1);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    now_ns = last_progress = monotonic();
    uint64_t window_start = now_ns + warm_up_ns, window_end = window_start + measure_ns;
    uint64_t began = 0, ended = 0, cpu_start = 0, cpu = 0, seconds = 1;
    uint64_t interval = rate > 0 ? (uint64_t)(SECOND / rate) : 0, next_send = now_ns;
    if (!warm_up_ns) {
        is_measuring = true;
        began = now_ns;
        cpu_start = own_cpu_ns();
        tell("start");
    }
    start_load();
    struct epoll_event events[EVENTS];
    for (;;) {
        uint64_t next = !is_measuring && !is_ending ? window_start : is_ending ? now_ns + QUIET_NS : window_end;
        if (interval && !is_ending && !is_saturated && next_send < next) next = next_send;
        uint64_t next_wake = protocol->is_polled ? wake_parked() : NEVER;
        if (next_wake < next) next = next_wake;
        if (reports_seconds && is_measuring && began + seconds * SECOND < next) next = began + seconds * SECOND;
        uint64_t wait = next > now_ns ? next - now_ns : 0;
        int count = await_events(events, wait);
        wakeups++;
        now_ns = monotonic();
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_out(connection);
            if (events[i].events & ~(uint32_t)EPOLLOUT) read_replies(connection);
        }
        if (interval && !is_ending) next_send = send_due(next_send, interval);
        if (!is_measuring && !is_ending && now_ns >= window_start) {
            is_measuring = true;
            began = now_ns;
            cpu_start = own_cpu_ns();
            tell("start");
        }
        if (reports_seconds && is_measuring && now_ns >= began + seconds * SECOND) {
            printf("second ");
            print_report(now_ns - began, own_cpu_ns() - cpu_start);
            seconds = (now_ns - began) / SECOND + 1;
        }
        /* A receive of an empty queue waits with its deletes: they are done although unanswered. A walker deletes the
           messages that it sends. */
        bool is_done = limit && (deleted + unanswered >= limit || (sent >= limit && !stop_count && !has_consumers));
        if (is_measuring && !is_ending && (now_ns >= window_end || is_done)) {
            is_measuring = false;
            is_ending = true;
            ended = now_ns;
            cpu = own_cpu_ns() - cpu_start;
            tell("end");
            last_progress = now_ns;
        }
        if (is_ending && is_quiet() && now_ns - last_progress >= (is_done ? 0 : QUIET_NS)) break;
        if (now_ns - last_progress > STALL_NS && !is_quiet()) fail("the broker owes a reply and was silent for 30 s");
    }
    print_report(ended - began, cpu);
    return 0;
}
