# What may be forgotten: for every policy and budget, how much worse the text is predicted than with full attention, at the
# shortest and the longest context; what is left of a fact planted at the start, and how often it is recalled; bytes.
load 'plots/style.gp'

all = ''; groups = ''; probed = ''; recalling = ''; scored = 0; asked = 0; recalled = 0; most = 0.0; short_text = 1e18; long_text = 0.0
position(p) = p eq 'window only' ? 1 : p eq 'sinks + window' ? 2 : p eq 'heavy hitters' ? 3 : p eq 'persistence of importance' ? 4 : NaN
evicts(unused) = known(position(strcol('policy')))
group(unused) = sprintf('%s|%s|', strcol('budget_tokens'), strcol('context')).@row_key
budget_of(g) = g[1 : strstrt(g, '|') - 1]
rest_of(g) = g[strstrt(g, '|') + 1 : *]
context_of(g) = rest_of(g)[1 : strstrt(rest_of(g), '|') - 1]
series_of(g) = rest_of(g)[strstrt(rest_of(g), '|') + 1 : *]
stats csv using (all = add_word(all, @row_key), groups = evicts(0) ? add_word(groups, group(0)) : groups, \
    scored = scored + known(num('perplexity')), asked = asked + known(num('probe_kept_percent')), \
    short_text = smaller(short_text, num('context')), long_text = bigger(long_text, num('context')), \
    probed = known(num('probe_kept_percent')) ? add_word(probed, group(0)) : probed, \
    recalling = known(num('recall_percent')) ? add_word(recalling, group(0)) : recalling, \
    recalled = recalled + (evicts(0) && known(num('recall_percent'))), most = bigger(most, num('kv_bytes')), 0) nooutput
count = words(groups)
pick(i) = evicts(0) && group(0) eq word(groups, i) ? position(strcol('policy')) + (i - (count + 1) / 2.0) * 0.6 / count : NaN
label(g) = (words(all) > 1 ? series_of(g).', ' : '').commas(int(budget_of(g))).' slots, '.commas(int(context_of(g))).' tokens'

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 1000)
    set multiplot
    set xrange [0.5 : 4.5]
    two = long_text > short_text

    do for [half = 0 : two] {
        context = half ? long_text : short_text
        best = 0.0; worst = 0.0
        stats csv using (num('context') == context ? (worst = bigger(worst, num('perplexity_delta_percent')), \
            best = smaller(best, num('perplexity_delta_percent'))) : 0, 0) nooutput
        span = worst > best ? worst - best : 1
        set lmargin 11; set rmargin 2
        set origin half * 0.5, 0.54; set size two ? 0.5 : 1, 0.43
        set title commas(int(context)).' tokens'
        if (half) { unset ylabel } else { set ylabel 'perplexity, % above full attention' }
        set yrange [best - 0.15 * span : worst + 0.15 * span]
        set xtics ('window' 1, 'sinks' 2, 'heavy' 3, 'persistent' 4)
        unset key
        if (!scored) { set label 1 'no perplexity: weights are synthetic' at graph 0.5, 0.7 center }
        plot 0 with lines ls 1, \
             for [i = 1:count] csv using (int(context_of(word(groups, i))) == context ? pick(i) : off_scale):(given(scored, num('perplexity_delta_percent'))) \
                 with points lc rgb colour(i) lw 2 pt point(i) ps 1.8
        unset label
    }
    set label 2 'What may be forgotten: '.heading(all) at screen 0.5, 0.98 center

    set lmargin 11; set rmargin 3
    set origin 0, 0.28; set size 1, 0.26
    unset title
    set ylabel 'fact at the start, %'
    set yrange [-5 : 145]
    set ytics 0, 25, 100
    set xtics ('' 1, '' 2, '' 3, '' 4)
    set key left top maxrows 2
    if (!asked) { set label 1 'no probe: see the notes of the run' at graph 0.5, 0.4 center }
    plot NaN with points lc rgb black pt 5 ps 1.2 title 'filled: slots of its digits still there', \
         NaN with points lc rgb black pt 4 ps 2.2 title recalled ? 'open: recalled' : 'recalled: none with full attention either', \
         for [i = 1:count] csv using (pick(i)):(has_word(probed, word(groups, i)) ? num('probe_kept_percent') : off_scale) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.2 notitle, \
         for [i = 1:count] csv using (pick(i)):(has_word(recalling, word(groups, i)) ? num('recall_percent') : off_scale) \
             with points lc rgb colour(i) lw 2 pt point(i) - 1 ps 2.4 notitle
    unset label

    set origin 0, 0; set size 1, 0.30
    set ylabel 'KV cache, MiB'
    set yrange [0 : most / MiB * (1.2 + 0.12 * (count + 1))]
    set ytics autofreq
    set xtics ('window only' 1, 'sinks + window' 2, 'heavy hitters' 3, 'persistence of importance' 4)
    set key left top maxrows 3
    plot csv using (2.5):(evicts(0) ? NaN : num('kv_bytes') / MiB):(2.0) with xerrorbars lc rgb grey lw 2.5 pt 0 \
             title 'full attention, each context', \
         for [i = 1:count] csv using (pick(i)):(num('kv_bytes') / MiB) \
             with points lc rgb colour(i) lw 2 pt point(i) ps 1.4 title label(word(groups, i))
    unset multiplot
    unset output
}
