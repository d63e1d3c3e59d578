# Sequences that a budget holds, by cache policy and context: bars are counted, crosses predicted, and the word above each bar
# is what refused the next sequence.
load 'plots/style.gp'

# One bar per row; a small gap between contexts, a larger one between series, budgets and slots.
all = ''; places = ''; latest = ''; latest_group = ''; place = 0.0; highest = 0.0; budgets = ''; slots = ''; ticks = ''; middles = ''
setting(unused) = strcol('context').'|'.group(0)
group(unused) = strcol('budget_bytes').' '.strcol('slots').' '.@row_key
advance(s, g) = (place = place + (latest eq '' || latest eq s ? 1.0 : latest_group eq g ? 1.8 : 2.6), \
    ticks = latest eq s ? ticks : ticks.'"'.context_label(0).'" ', middles = latest eq s ? middles : middles.sprintf('%g ', place), \
    latest = s, latest_group = g, place)
context_label(unused) = commas(int(num('context'))).' tokens'
stats csv using (all = add_word(all, @row_key), budgets = add_word(budgets, strcol('budget_bytes')), \
    slots = add_word(slots, strcol('slots')), places = places.sprintf('%g ', advance(setting(0), group(0))), \
    highest = bigger(highest, num('predicted_sequences')), highest = bigger(highest, num('measured_sequences')), 0) nooutput
at(row) = real(word(places, int(row) + 1))
crowded = rows(csv) > 24

policies = 'exact reserved paged'
tones = blue.' '.orange.' '.green
kept = 'last all'
bar(p, l, x) = strcol('policy') eq p && strcol('logits_positions') eq l ? x : NaN
refused(unused) = sprintf(crowded ? '%s' : "%s\n%s", strcol('measured_sequences'), crowded ? '' : strcol('limit'))
under = words(budgets) == 1 ? ' under '.commas(int(word(budgets, 1)[1:*])).' bytes' : ''
room = words(slots) == 1 ? ', '.commas(int(word(slots, 1)[1:*])).' slots' : ''

do for [format in 'png svg'] {
    eval open_picture(format, 1100, 700)
    set title 'Sequences admitted'.under.': '.heading(all).room
    set ylabel 'sequences'
    set xlabel 'tokens that each sequence holds; above the bars: counted, and what refused the next one' offset 0, -1.5
    set xrange [0.2 : bigger(place + 0.8, 5)]
    set yrange [0 : highest * 1.18 + 0.5]
    set grid noxtics
    set rmargin 3
    set bmargin 9
    set boxwidth 0.86
    set key outside bottom center horizontal maxrows 3 samplen 2.5 width 1 font font.',12'
    unset xtics
    do for [i = 1:words(ticks)] {
        set label i word(ticks, i) at real(word(middles, i)) - 0.45, graph -0.035 left font font.',12'
    }
    plot for [p = 1:3] csv using (at($0)):(bar(word(policies, p), 'last', num('measured_sequences'))) with boxes \
             lc rgb word(tones, p) lw 1.5 fs solid 0.75 border lc rgb word(tones, p) \
             title word(policies, p).', logits of the last position', \
         for [p = 1:3] csv using (at($0)):(bar(word(policies, p), 'all', num('measured_sequences'))) with boxes \
             lc rgb word(tones, p) lw 1.5 fs pattern 4 border lc rgb word(tones, p) title word(policies, p).', logits of all positions', \
         csv using (at($0)):(num('predicted_sequences')) with points ls 3 title 'predicted by the plan', \
         csv using (at($0)):(num('measured_sequences')):(refused(0)) with labels font font.',10' offset 0, 1.7 notitle
    unset output
}
