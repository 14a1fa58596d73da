// llama_infer: times llama.cpp's prefill and decoding of token ids; no vocabulary is needed.
//
//   llama_infer MODEL.gguf THREADS CONTEXT STEPS PROMPT REPEATS BATCH...
//
// For each BATCH: so many sequences of CONTEXT tokens each, then STEPS decoded tokens of every sequence, each step timed
// with the choice of the most probable ids. Then REPEATS prefills of PROMPT tokens, logits of the last alone. The last
// line on standard output is one JSON object with the seconds of every step.
//
// llama.cpp's best settings on a CPU: flash attention, keys and values in f16 (its default), each sequence with its own
// buffer (its advice where sequences share no prefix).

#include "ggml.h"
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static const int UBATCH = 512; // tokens that llama.cpp computes at once; its default

static void fail(const char * what) {
    fprintf(stderr, "llama_infer: %s\n", what);
    exit(1);
}

static double now_s() {
    using clock = std::chrono::steady_clock;
    return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

// Any ids do: the weights are random and the work does not depend on them.
static llama_token any_id(int64_t i, int vocab) {
    return (llama_token) (i * 7919 % vocab);
}

// A context for so many sequences, and the batch that is fed to it.
struct Session {
    llama_context * context;
    llama_batch batch;
    int vocab;

    Session(llama_model * model, int threads, int sequences, int tokens_each) {
        llama_context_params params = llama_context_default_params();
        params.n_ctx = sequences * tokens_each;
        params.n_batch = std::max(UBATCH, tokens_each);
        params.n_ubatch = UBATCH;
        params.n_seq_max = sequences;
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.kv_unified = false;
        context = llama_init_from_model(model, params);
        if (!context) {
            fail("no context");
        }
        batch = llama_batch_init(params.n_batch, 0, 1);
        vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    }

    ~Session() {
        llama_batch_free(batch);
        llama_free(context);
    }

    llama_memory_t memory() { return llama_get_memory(context); }

    void add(llama_token id, int position, int sequence, bool wants_logits) {
        const int i = batch.n_tokens++;
        batch.token[i] = id;
        batch.pos[i] = position;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = sequence;
        batch.logits[i] = wants_logits;
    }

    // Computes what was added; llama_get_logits_ith waits for the result.
    void compute() {
        if (llama_decode(context, batch)) {
            fail("llama_decode failed");
        }
    }

    llama_token best(int row) {
        const float * logits = llama_get_logits_ith(context, row);
        return (llama_token) (std::max_element(logits, logits + vocab) - logits);
    }

    // Runs a prompt in sequence 0 from its start; the seconds it took.
    double prefill(int prompt) {
        llama_memory_clear(memory(), true);
        const double start = now_s();
        batch.n_tokens = 0;
        for (int i = 0; i < prompt; i++) {
            add(any_id(i, vocab), i, 0, i + 1 == prompt);
        }
        compute();
        best(prompt - 1);
        return now_s() - start;
    }
};

// Seconds of each decoding step of a batch. The context is computed once and copied: every sequence has cells of its own.
static std::vector<double> decode(llama_model * model, int threads, int sequences, int context, int steps) {
    Session session(model, threads, sequences, context + steps + 1);
    session.prefill(context);
    for (int s = 1; s < sequences; s++) {
        llama_memory_seq_cp(session.memory(), 0, s, -1, -1);
    }
    std::vector<llama_token> ids(sequences);
    for (int s = 0; s < sequences; s++) {
        ids[s] = any_id(s + 1, session.vocab);
    }
    std::vector<double> seconds;
    for (int step = 0; step <= steps; step++) {
        const double start = now_s();
        session.batch.n_tokens = 0;
        for (int s = 0; s < sequences; s++) {
            session.add(ids[s], context + step, s, true);
        }
        session.compute();
        for (int s = 0; s < sequences; s++) {
            ids[s] = session.best(s);
        }
        if (step > 0) { // the first one also copies the cells and warms
            seconds.push_back(now_s() - start);
        }
    }
    return seconds;
}

static void print_figure(const char * what, int batch, int context, int tokens, const std::vector<double> & seconds) {
    printf("{\"what\":\"%s\",\"batch\":%d,\"context\":%d,\"tokens\":%d,\"seconds\":[", what, batch, context, tokens);
    for (size_t i = 0; i < seconds.size(); i++) {
        printf("%s%.6f", i ? "," : "", seconds[i]);
    }
    printf("]}");
}

// Mean of -ln p of the ids 1.. of a prompt of any_id, in nats: that the file holds the model it should.
static double mean_nll(llama_model * model, int threads, int tokens) {
    Session session(model, threads, 1, tokens);
    for (int i = 0; i < tokens; i++) {
        session.add(any_id(i, session.vocab), i, 0, true);
    }
    session.compute();
    double sum = 0;
    for (int i = 0; i + 1 < tokens; i++) {
        const float * logits = llama_get_logits_ith(session.context, i);
        const float most = *std::max_element(logits, logits + session.vocab);
        double total = 0;
        for (int id = 0; id < session.vocab; id++) {
            total += std::exp((double) (logits[id] - most));
        }
        sum += std::log(total) + most - logits[any_id(i + 1, session.vocab)];
    }
    return sum / (tokens - 1);
}

int main(int count, char ** words) {
    if (count < 8) {
        fail("usage: llama_infer MODEL.gguf THREADS CONTEXT STEPS PROMPT REPEATS BATCH...");
    }
    const int threads = atoi(words[2]), context = atoi(words[3]), steps = atoi(words[4]);
    const int prompt = atoi(words[5]), repeats = atoi(words[6]);

    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    llama_model * model = llama_model_load_from_file(words[1], params);
    if (!model) {
        fail("the model cannot be loaded");
    }

    printf("{\"peer\":\"llama.cpp\",\"version\":\"%s, ggml %s\",", llama_version(), ggml_version());
    printf("\"settings\":\"flash attention, f16 KV, own KV buffers; %s\",", llama_print_system_info());
    // The first computation also brings the file into memory.
    printf("\"threads\":%d,\"check\":%.6f,\"figures\":[", threads, mean_nll(model, threads, 32));
    for (int i = 7; i < count; i++) {
        const int sequences = atoi(words[i]);
        const std::vector<double> seconds = decode(model, threads, sequences, context, steps);
        print_figure("decode", sequences, context, sequences, seconds);
        fputs(i + 1 < count || repeats > 0 ? "," : "", stdout);
    }
    if (repeats > 0) {
        Session session(model, threads, 1, prompt);
        std::vector<double> seconds;
        for (int i = 0; i < repeats; i++) {
            seconds.push_back(session.prefill(prompt));
        }
        print_figure("prefill", 1, prompt, prompt, seconds);
    }
    printf("]}\n");
    llama_model_free(model);
    return 0;
}
