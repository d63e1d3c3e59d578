# Generating with the cache against without: how much less work (positions passed through the model) and how much less
# time. Both as ratios over the number of new tokens.
load 'plots/style.gp'

all = ''
low = 1e300; high = 0.0; tallest = 1.0; prompt = 0; prompts = ''; times = 0
stats csv using (all = add_word(all, @row_key), prompts = add_word(prompts, strcol('prompt_tokens')), \
    prompt = int(num('prompt_tokens')), low = smaller(low, num('new_tokens')), high = bigger(high, num('new_tokens')), \
    tallest = bigger(tallest, num('work_ratio')), tallest = bigger(tallest, num('time_ratio')), \
    times = times + known(num('time_ratio')), 0) nooutput

# (P + (P+1) + ... + (P+N-1)) / (P+N-1): every new token passes all positions before it again, against each only once.
work(p, n) = (n * p + n * (n - 1) / 2.0) / (p + n - 1)
off_scale = 1e-9
tick_ratio(x) = x == x ? short(x) : ''

published = lessons.'/cache.csv'
same_prompt = has_word(prompts, '128')

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 700)
    set title 'Without a KV cache against with it: '.heading(all)
    set xlabel 'new tokens'
    set ylabel 'without / with (log scale)'
    set logscale x 2
    set logscale y 10
    set xrange [low / 1.3 : high * 1.3]
    set yrange [0.8 : tallest * (6 + 2 * words(all))]
    set ytics add (2, 5, 20, 50, 200, 500)
    set key left top
    plot for [i = 1:words(prompts)] work(real(word(prompts, i)), x) with lines ls 1 \
             title sprintf('formula: work ratio, prompt of %s tokens', word(prompts, i)), \
         csv using (num('new_tokens')):(num('work_ratio')) with points ls 2 title 'work ratio, positions counted', \
         for [i = 1:words(all)] csv using (in_series(word(all, i), num('new_tokens'))):(given(times, num('time_ratio'))) \
             with linespoints lc rgb colour(i) lw 2 dt (6,4) pt point(i) ps 1.4 \
             title 'time ratio, measured'.(words(all) > 1 ? ': '.word(all, i) : ''), \
         published using (num('new_tokens')):(given(same_prompt, num('time_ratio'))) \
             with linespoints ls 5 title same_prompt ? 'time ratio, published: Qwen2.5-1.5B bf16, RTX 3060' : '', \
         1 with lines lc rgb black lw 1 dt (1,3) notitle, \
         csv using (num('new_tokens')):(num('work_ratio')):(tick_ratio(num('work_ratio'))) with labels offset 0, 1.2 notitle, \
         csv using (num('new_tokens')):(given(times, num('time_ratio'))):(tick_ratio(num('time_ratio'))) with labels offset 0, -1.2 notitle
    unset output
}
